package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Dedup keys are taken so that a settlement never waits for a producer.
//
// The row of a key names the pending event that holds it. A settlement deletes
// the row in the transaction that settles the event. A producer that finds a
// key taken must know that the key is taken now; its transaction usually runs
// at REPEATABLE READ, where a plain SELECT reads an old snapshot. Only a
// locking read returns the current row, and the lock lasts until the producer's
// transaction ends.
//
//   - A producer takes keys with INSERT … ON DUPLICATE KEY UPDATE, which leaves
//     an existing row unchanged but locks it. The statement waits for other
//     open transactions that locked the row, and for a settlement that deletes
//     it. A plain INSERT would take a shared lock on an existing row instead:
//     two producers that wait for the same settlement would then both hold the
//     shared lock, both try to insert, and deadlock. Two producers that lock
//     the gap of a deleted row with a SELECT would deadlock, too.
//   - A settlement skips locked rows (SKIP LOCKED) and leaves them behind; the
//     next settlement tries again, and so does Tidy. Example: producer P is
//     absorbed by e1 and stays open; the relay settles e1 and cannot delete the
//     row. P was absorbed correctly: e1 was pending when P checked.
//   - A row that was left behind names an event that is no longer pending. The
//     next producer, which then holds the lock on the row, detects that and
//     takes the row over.
//   - At READ COMMITTED a plain SELECT returns the current row. A producer at
//     READ COMMITTED is therefore absorbed without locking anything.
//
// One case remains at REPEATABLE READ: a row was left behind, and the next
// producer's snapshot is older than the settlement of the event. The producer
// sees the event as pending and is absorbed by it. To prevent that, the
// producer would have to lock the event's own row, and the settlement would
// wait. For the caller, the case equals being absorbed by an event that is in
// flight.

// dedupKey is a dedup key of one tenant.
type dedupKey struct{ tenant, key string }

func keyOf(ev waybill.Event) dedupKey { return dedupKey{ev.TenantID, ev.DedupKey} }

// bytes returns the tenant and the key as arguments.
func (k dedupKey) bytes() []any { return []any{[]byte(k.tenant), []byte(k.key)} }

// compareKeys defines the order in which keys are taken.
func compareKeys(a, b dedupKey) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.key, b.key))
}

// takeKeys takes the dedup keys of events in sorted order, so that two
// concurrent writes cannot deadlock. For an event whose key is taken, placed
// gets the ID of the event that holds the key; of two events with the same key,
// the first takes it.
func (s *backend) takeKeys(ctx context.Context, tx querier, f facts, evs []waybill.Event, placed []driver.AppendResult) error {
	first := make(map[dedupKey]waybill.ID)
	for _, ev := range evs {
		if _, again := first[keyOf(ev)]; ev.DedupKey != "" && !again {
			first[keyOf(ev)] = ev.ID
		}
	}
	if len(first) == 0 {
		return nil
	}
	keys := make([]dedupKey, 0, len(first))
	for k := range first {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	for part := range parts(keys, maxIDs) {
		if err := s.takeSorted(ctx, tx, f, part, first); err != nil {
			return err
		}
	}
	for i, ev := range evs {
		if ev.DedupKey != "" {
			placed[i].ID = first[keyOf(ev)]
		}
	}
	return nil
}

// takeSorted takes keys for the events in holders, and replaces the holder of
// each key that another event holds.
func (s *backend) takeSorted(ctx context.Context, tx querier, f facts, keys []dedupKey, holders map[dedupKey]waybill.ID) error {
	if f.readCommitted {
		seen, err := s.keyStates(ctx, tx, keys)
		if err != nil {
			return err
		}
		keys = slices.DeleteFunc(slices.Clone(keys), func(k dedupKey) bool {
			state := seen[k]
			if state.pending {
				holders[k] = state.holder
			}
			return state.pending
		})
	}
	if len(keys) == 0 {
		return nil
	}
	met, err := s.insertKeys(ctx, tx, f, keys, holders)
	if err != nil || !met {
		return err
	}
	// Some keys are taken. This transaction now holds locks on all rows, so
	// they cannot change.
	seen, err := s.keyStates(ctx, tx, keys)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if holders[k], err = s.settleKey(ctx, tx, k, holders[k], seen[k]); err != nil {
			return err
		}
	}
	return nil
}

// insertKeys takes the free keys, locks the rows of all keys, and reports
// whether any key was taken.
func (s *backend) insertKeys(ctx context.Context, tx querier, f facts, keys []dedupKey, holders map[dedupKey]waybill.ID) (met bool, err error) {
	first := provenBytes
	if !f.proves {
		first = "?"
	}
	query := s.sql.takeKeys + "(" + first + ", ?, ?)" + strings.Repeat(", (?, ?, ?)", len(keys)-1) + s.sql.keyTaken
	args := make([]any, 0, 3*len(keys))
	for _, k := range keys {
		id := holders[k]
		args = append(append(args, id[:]), k.bytes()...)
	}
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	mark, err := res.LastInsertId()
	return mark != 0, err
}

// keyState is a key's row as read without a lock.
type keyState struct {
	holder  waybill.ID
	pending bool
}

func (s *backend) keyStates(ctx context.Context, tx querier, keys []dedupKey) (map[dedupKey]keyState, error) {
	args := make([]any, 0, 2*len(keys))
	for _, k := range keys {
		args = append(args, k.bytes()...)
	}
	where := strings.Repeat(" OR d.tenant_id = ? AND d.dedup_key = ?", len(keys))[len(" OR "):]
	seen := make(map[dedupKey]keyState, len(keys))
	var tenant, key []byte
	var id scanID
	var pending bool
	err := each(ctx, tx, s.sql.keyStates+where, args, func() {
		seen[dedupKey{string(tenant), string(key)}] = keyState{waybill.ID(id), pending}
	}, &tenant, &key, &id, &pending)
	return seen, err
}

// settleKey returns the event that holds a key whose row is locked. If the
// transaction sees that event as no longer pending, the row was left behind and
// id takes it over. An event that the transaction cannot see at all was written
// after the snapshot.
func (s *backend) settleKey(ctx context.Context, tx querier, k dedupKey, id waybill.ID, seen keyState) (waybill.ID, error) {
	var holder scanID
	if err := each(ctx, tx, s.sql.holder, k.bytes(), nil, &holder); err != nil {
		return id, err
	}
	if waybill.ID(holder) == id || waybill.ID(holder) != seen.holder || seen.pending {
		return waybill.ID(holder), nil
	}
	_, err := tx.ExecContext(ctx, s.sql.takeOver, append([]any{id[:]}, k.bytes()...)...)
	return id, err
}
