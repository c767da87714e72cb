package soak

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Sabotage is a way to break a promise on purpose, to show that the checker
// sees it.
type Sabotage string

// The kinds of sabotage.
const (
	// Lose: a relay settles events that it has not published.
	Lose Sabotage = "lose"
	// LoseDelayed: a delayed event is deleted from its table.
	LoseDelayed Sabotage = "lose-delayed"
	// Forget: a consumer acknowledges events that it has not applied.
	Forget Sabotage = "forget"
	// Phantom: events of a transaction that was rolled back are delivered.
	Phantom Sabotage = "phantom"
	// Claim: a producer is told that a transaction was committed that was
	// rolled back.
	Claim Sabotage = "claim"
	// Swap: a relay publishes an event after its successor.
	Swap Sabotage = "swap"
	// Repeat: a relay publishes events again and again.
	Repeat Sabotage = "repeat"
	// DoubleEffect: a consumer applies events again, outside the inbox.
	DoubleEffect Sabotage = "double-effect"
	// Payload: a relay publishes another payload.
	Payload Sabotage = "payload"
	// Headers: a relay publishes other headers.
	Headers Sabotage = "headers"
	// Misroute: a relay publishes events to another topic.
	Misroute Sabotage = "misroute"
	// Early: a delayed event is made due before its time.
	Early Sabotage = "early"
	// SecondEffect: the record of a key is lost.
	SecondEffect Sabotage = "second-effect"
	// OtherAnswer: the stored answer of a key is changed.
	OtherAnswer Sabotage = "other-answer"
	// Position: the epoch of a lane goes back, so that it is issued again.
	Position Sabotage = "position"
	// Stale: a relay settles an event of a lane that another relay owns.
	Stale Sabotage = "stale"
)

// sabotages maps each kind to the role that does it and to the promise that it
// breaks.
var sabotages = map[Sabotage]struct { //nolint:gochecknoglobals // never changed
	role    string
	promise Promise
}{
	Lose: {roleRelay, Delivered}, LoseDelayed: {roleRelay, Delivered}, Forget: {roleConsumer, Delivered}, Phantom: {roleProducer, CommittedOnly},
	Claim: {roleProducer, Outcomes}, Swap: {roleRelay, Ordered}, Repeat: {roleRelay, Duplicates}, DoubleEffect: {roleConsumer, Once},
	Payload: {roleRelay, Unchanged}, Headers: {roleRelay, Unchanged}, Misroute: {roleRelay, Routed}, Early: {roleRelay, NotEarly},
	SecondEffect: {roleRequester, OneEffect}, OtherAnswer: {roleRequester, SameAnswer}, Position: {roleRelay, Positions}, Stale: {roleRelay, Fenced},
}

// Sabotages returns all kinds.
func Sabotages() []string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(sabotages)) {
		names = append(names, string(kind))
	}
	return names
}

// Breaks returns the promise that the sabotage breaks.
func (s Sabotage) Breaks() Promise { return sabotages[s].promise }

// spoiled notes a sabotage of an event.
func (c *child) spoiled(what string, id waybill.ID) {
	c.out.note(note{Kind: noteSpoil, Text: what, Items: []item{{ID: id}}})
}

// spoiledKey notes a sabotage of a key.
func (c *child) spoiledKey(key string) {
	c.out.note(note{Kind: noteSpoil, Text: "the record of key " + key + " was changed"})
}

// every is the interval of sabotaged events.
const every = 20

// due reports whether the next event is sabotaged.
func due(count *int) bool {
	*count++
	return *count%every == 0
}

// spoil publishes a batch, one event at a time.
func (s *watchedSink) spoil(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i := range batch {
		results[i] = s.one(ctx, batch[i])
	}
	return results
}

// send publishes one event.
func (s *watchedSink) send(ctx context.Context, d waybill.Delivery) error {
	return s.DestinationSink.Deliver(ctx, []waybill.Delivery{d})[0]
}

// one publishes an event, or breaks a promise.
func (s *watchedSink) one(ctx context.Context, d waybill.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c.Sabotage == Swap {
		return s.swap(ctx, d)
	}
	if !due(&s.count) {
		return s.send(ctx, d)
	}
	switch s.c.Sabotage {
	case Lose:
		s.c.spoiled("settled and not published", d.ID)
		return nil
	case Repeat:
		return s.repeat(ctx, d)
	case Payload:
		d.Payload = spoiledPayload(d.Payload)
	case Headers:
		headers := maps.Clone(d.Headers)
		if headers == nil {
			headers = make(map[string]string)
		}
		headers["spoiled"] = "yes"
		d.Headers = headers
	case Misroute:
		d.Topic = topics[(slices.Index(topics, d.Topic)+1)%len(topics)]
	default: // another place of the relay
		return s.send(ctx, d)
	}
	err := s.send(ctx, d)
	if err == nil {
		s.c.spoiled("published with a change", d.ID)
	}
	return err
}

// spoiledPayload adds padding, so that the amount stays the same.
func spoiledPayload(payload []byte) []byte {
	var l load
	if json.Unmarshal(payload, &l) != nil {
		return payload
	}
	l.Pad += "spoiled"
	text, _ := json.Marshal(l) // numbers and a text
	return text
}

// repeat publishes an event many times, each as a replay, so that no broker
// drops it.
func (s *watchedSink) repeat(ctx context.Context, d waybill.Delivery) error {
	err := s.send(ctx, d)
	for n := 1; err == nil && n <= 200; n++ {
		again := d
		again.Replay = n
		if s.send(ctx, again) == nil {
			s.c.out.note(note{Kind: noteEnd, Items: []item{{ID: d.ID}}})
		}
	}
	s.c.spoiled("published 201 times", d.ID)
	return err
}

// swap publishes an event of an aggregate after its successor.
func (s *watchedSink) swap(ctx context.Context, d waybill.Delivery) error {
	before, waits := s.kept[d.AggregateID]
	if !waits && d.AggregateID != "" && due(&s.count) {
		s.kept[d.AggregateID] = d
		return nil
	}
	err := s.send(ctx, d)
	if err == nil && waits && s.send(ctx, before) == nil {
		delete(s.kept, d.AggregateID)
		s.c.spoiled("published after its successor", before.ID)
	}
	return err
}

// spoil applies a batch, or breaks a promise.
func (g *watchedGroup) spoil(ctx context.Context, batch []waybill.Delivery) []error {
	g.mu.Lock()
	defer g.mu.Unlock()
	results := make([]error, len(batch))
	for i := range batch {
		hit := due(&g.count)
		if hit && g.c.Sabotage == Forget {
			g.c.spoiled("acknowledged and not applied", batch[i].ID)
			continue
		}
		results[i] = g.Group.Deliver(ctx, batch[i:i+1])[0]
		if hit && results[i] == nil && g.c.Sabotage == DoubleEffect {
			results[i] = g.again(ctx, &batch[i].Event)
		}
	}
	return results
}

// again applies an event outside the inbox.
func (g *watchedGroup) again(ctx context.Context, ev *waybill.Event) error {
	tx, err := g.c.store.SQL.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit, or after an error
	if err := g.c.names.apply(ctx, tx, ev); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	g.c.spoiled("applied again", ev.ID)
	return nil
}

// acquired remembers the leases of this relay.
func (w *watchedTables) acquired(leases []driver.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held, w.gone = make(map[int]driver.Lease), make(map[int]driver.Lease)
	}
	for _, l := range leases {
		w.held[l.Lane] = l
		delete(w.gone, l.Lane)
	}
}

// Release implements [driver.Lanes].
func (w *watchedTables) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	err := w.Relay.Release(ctx, leases, dirty)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range leases {
		if _, ok := w.held[l.Lane]; ok {
			delete(w.held, l.Lane)
			w.gone[l.Lane] = l
		}
	}
	return err
}

// Heartbeat implements [driver.Lanes]. The sabotage of the tables happens here.
func (w *watchedTables) Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error) {
	m, err := w.Relay.Heartbeat(ctx, node, lease)
	if err != nil || w.c.Sabotage == "" {
		return m, err
	}
	var failed error
	switch w.c.Sabotage {
	case LoseDelayed:
		failed = w.loseDelayed(ctx)
	case Early:
		failed = w.early(ctx)
	case Position:
		failed = w.position(ctx)
	case Stale:
		failed = w.stale(ctx, m)
	default: // another place of the relay
	}
	if failed != nil {
		w.c.out.failed("sabotage", failed)
	}
	return m, nil
}

// loseDelayed deletes a delayed event.
func (w *watchedTables) loseDelayed(ctx context.Context) error {
	var lane, seq int64
	err := w.c.store.SQL.QueryRowContext(ctx, w.c.names.fill(`SELECT lane, seq FROM {delayed} WHERE attempts = 0 ORDER BY due_at DESC LIMIT 1`)).Scan(&lane, &seq)
	if err != nil {
		return ignoreNone(err)
	}
	res, err := w.c.store.SQL.ExecContext(ctx, w.c.names.fill(`DELETE FROM {delayed} WHERE lane = ? AND seq = ?`), lane, seq)
	return w.changed(res, err, "a delayed event was deleted")
}

// early makes delayed events due.
func (w *watchedTables) early(ctx context.Context) error {
	res, err := w.c.store.SQL.ExecContext(ctx, w.c.names.fill(`UPDATE {delayed} SET due_at = created_at WHERE due_at > created_at AND attempts = 0`))
	return w.changed(res, err, "delayed events were made due")
}

// position sets the epoch of a lane back, once.
func (w *watchedTables) position(ctx context.Context) error {
	if w.done {
		return nil
	}
	res, err := w.c.store.SQL.ExecContext(ctx, w.c.names.fill(`UPDATE {lane} SET epoch = epoch - 1 WHERE epoch > 1 AND lane = 0`))
	if err == nil {
		n, _ := res.RowsAffected() // all drivers know it
		w.done = n > 0
	}
	return w.changed(res, err, "the epoch of lane 0 was set back")
}

// stale deletes an event of a lane that another node has acquired since.
func (w *watchedTables) stale(ctx context.Context, m store.Membership) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range m.Lanes {
		old, ok := w.gone[l.Lane]
		if lost, was := w.held[l.Lane]; was && lost.Epoch < l.Epoch {
			old, ok = lost, true
		}
		if !ok || l.Epoch <= old.Epoch || l.Owner.IsZero() {
			continue
		}
		begun := time.Now()
		var seq int64
		err := w.c.store.SQL.QueryRowContext(ctx, w.c.names.fill(`SELECT seq FROM {outbox} WHERE lane = ? ORDER BY seq DESC LIMIT 1`), l.Lane).Scan(&seq)
		if err != nil {
			return ignoreNone(err)
		}
		res, err := w.c.store.SQL.ExecContext(ctx, w.c.names.fill(`DELETE FROM {outbox} WHERE lane = ? AND seq = ?`), l.Lane, seq)
		if err := w.changed(res, err, "an event of a lane of another relay was settled"); err != nil {
			return err
		}
		w.settled(begun, []driver.Lease{old}, []int{old.Lane})
	}
	return nil
}

// changed notes a sabotage by SQL.
func (w *watchedTables) changed(res sql.Result, err error, what string) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	w.c.out.note(note{Kind: noteSpoil, Text: what})
	return nil
}

func ignoreNone(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
