package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store/driver"
)

// Limits of one INSERT statement, so that neither the client nor the server
// holds more in memory at once.
const (
	chunkEvents = 5000
	chunkBytes  = 8 << 20
)

// chunks splits events into statements of a limited size.
func chunks(evs []waybill.Event) [][]waybill.Event {
	var out [][]waybill.Event
	start, size := 0, 0
	for i, ev := range evs {
		if i > start && (i-start == chunkEvents || size+len(ev.Payload) > chunkBytes) {
			out = append(out, evs[start:i])
			start, size = i, 0
		}
		size += len(ev.Payload)
	}
	return append(out, evs[start:])
}

// special reports whether an event needs more than a row in outbox.
func special(ev waybill.Event) bool {
	return ev.DedupKey != "" || ev.Delayed()
}

// place chooses the lanes of events.
func (c *core) place(evs []waybill.Event, lanes int) []driver.AppendResult {
	placed := make([]driver.AppendResult, len(evs))
	for i, ev := range evs {
		placed[i] = driver.AppendResult{ID: ev.ID, Lane: c.laneFor(ev, lanes)}
	}
	return placed
}

// answer handles a number that an insert returns. A positive number is the
// position, counted from 1, of an absorbed event. A negative number is the
// negated lane count of the tables: the writer assumed another count, and the
// database chose the lanes.
func (c *core) answer(evs []waybill.Event, placed []driver.AppendResult, n int64) {
	if n > 0 {
		placed[n-1].ID = waybill.ID{}
		return
	}
	lanes := int(-n)
	c.noteLanes(lanes)
	for i, ev := range evs {
		if ev.Ordered() {
			placed[i].Lane = driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, lanes)
		} else {
			placed[i].Lane = driver.LaneOf("", "", ev.ID.UUID(), lanes)
		}
	}
}

// pgxEncoder encodes a single event for pgx.
var pgxEncoder = eventrow.Encoder{
	ID:   func(id waybill.ID) any { return pgtype.UUID{Bytes: id, Valid: true} },
	Time: func(t time.Time) any { return t },
}

// insert returns the statement that writes a chunk into the given number of
// lanes, and its arguments for pgx.
func (c *core) insert(evs []waybill.Event, placed []driver.AppendResult, lanes int) (query string, args []any, err error) {
	extra := false
	for _, ev := range evs {
		extra = extra || special(ev)
	}
	if len(evs) == 1 && !extra {
		args, err = pgxEncoder.Append([]any{int16(placed[0].Lane)}, evs[0])
		return c.sql.insertOne, append(args, int32(lanes)), err
	}
	if args, err = arrays(evs, placed); err != nil {
		return "", nil, err
	}
	if !extra {
		return c.sql.insertMany, append(args, int32(lanes)), nil
	}
	at := make([]pgtype.Timestamptz, len(evs))
	delay := make([]int64, len(evs))
	for i, ev := range evs {
		at[i] = pgtype.Timestamptz{Time: ev.AvailableAt, Valid: !ev.AvailableAt.IsZero()}
		delay[i] = ev.Delay.Microseconds()
	}
	return c.sql.insertWith, append(args, at, delay, int32(lanes)), nil
}

// arrays returns a column per argument, in the order of insertColumns. A column
// that is empty in all events is nil.
func arrays(evs []waybill.Event, placed []driver.AppendResult) ([]any, error) {
	n := len(evs)
	lanes, ids := make([]int16, n), make([]pgtype.UUID, n)
	versions, priorities := make([]int32, n), make([]int16, n)
	occurred, payloads := make([]time.Time, n), make([][]byte, n)
	headers := make([]string, n)
	plain := true // all events have version 1 and priority 0
	for i, ev := range evs {
		lanes[i] = int16(placed[i].Lane)
		ids[i] = pgtype.UUID{Bytes: ev.ID, Valid: true}
		versions[i], priorities[i] = int32(ev.SchemaVersion), int16(ev.Priority)
		occurred[i], payloads[i] = ev.OccurredAt, ev.Payload
		plain = plain && ev.SchemaVersion == 1 && ev.Priority == 0
		var err error
		if headers[i], err = driver.EncodeHeaders(ev.Headers); err != nil {
			return nil, err
		}
	}
	var version, priority any
	if !plain {
		version, priority = versions, priorities
	}
	text := func(field func(i int) string) any { return nullTexts(n, field) }
	return []any{
		lanes, ids,
		text(func(i int) string { return evs[i].Type }),
		text(func(i int) string { return evs[i].AggregateType }),
		text(func(i int) string { return evs[i].AggregateID }),
		text(func(i int) string { return evs[i].TenantID }),
		text(func(i int) string { return evs[i].Topic }),
		text(func(i int) string { return evs[i].RoutingKey }),
		text(func(i int) string { return evs[i].SchemaID }),
		version,
		text(func(i int) string { return evs[i].DedupKey }),
		occurred, priority,
		text(func(i int) string { return evs[i].CorrelationID }),
		text(func(i int) string { return evs[i].CausationID }),
		text(func(i int) string { return headers[i] }),
		text(func(i int) string {
			if evs[i].ContentType == waybill.JSON {
				return ""
			}
			return evs[i].ContentType
		}),
		payloads,
	}, nil
}

// nullTexts returns a text column in which empty texts are NULL. A column that
// is all NULL is nil.
func nullTexts(n int, field func(i int) string) any {
	var column []pgtype.Text
	for i := range n {
		s := field(i)
		if s == "" {
			continue
		}
		if column == nil {
			column = make([]pgtype.Text, n)
		}
		column[i] = pgtype.Text{String: s, Valid: true}
	}
	if column == nil {
		return nil
	}
	return column
}

// Append implements [driver.Appender].
func (s *pgxBackend) Append(ctx context.Context, tx pgx.Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	// An empty batch reports whether the transaction is open, without a round
	// trip. The store may inspect the connection only while the transaction is
	// open.
	if err := tx.SendBatch(ctx, &pgx.Batch{}).Close(); err != nil {
		return nil, ended(err)
	}
	g, ours := tx.(*guard)
	if !ours && tx.Conn() != nil && tx.Conn().PgConn().TxStatus() == idle {
		return nil, fmt.Errorf("%w: ended by an SQL statement", waybill.ErrTxDone)
	}
	put := func(evs []waybill.Event, placed []driver.AppendResult, lanes int) error {
		var parts []part
		all := &pgx.Batch{}
		for _, chunk := range chunks(evs) {
			p := part{evs: chunk, placed: placed[:len(chunk)]}
			placed = placed[len(chunk):]
			query, args, err := s.insert(chunk, p.placed, lanes)
			if err != nil {
				return err
			}
			all.Queue(query, args...)
			parts = append(parts, p)
		}
		results := tx.SendBatch(ctx, all)
		for _, p := range parts {
			if err := p.read(s.core, results); err != nil {
				_ = results.Close()
				return err
			}
		}
		return results.Close()
	}
	placed, err := s.append(ctx, pgxDB{tx}, evs, put)
	for i := range placed {
		if ours && placed[i].ID == evs[i].ID {
			g.s.flushed = append(g.s.flushed, evs[i].ID)
		}
	}
	return placed, err
}

// append writes events through put and looks up the holders of absorbed dedup
// keys. put marks an absorbed event with the zero id.
func (c *core) append(
	ctx context.Context, tx database, evs []waybill.Event, put func([]waybill.Event, []driver.AppendResult, int) error,
) ([]driver.AppendResult, error) {
	lanes, err := c.laneCount(ctx, tx)
	if err != nil {
		return nil, ended(err)
	}
	placed := c.place(evs, lanes)
	if err := put(evs, placed, lanes); err != nil {
		return nil, c.explain(ended(err))
	}
	for {
		absorbed := absorbedOf(placed)
		if len(absorbed) == 0 {
			return placed, nil
		}
		vanished, err := c.findHolders(ctx, tx, evs, placed, absorbed)
		if err != nil {
			return nil, c.explain(ended(err))
		}
		if len(vanished) == 0 {
			return placed, nil
		}
		// The event that held the key was delivered between the two statements.
		// The key is free, so the store writes the event again.
		again, where := make([]waybill.Event, len(vanished)), make([]driver.AppendResult, len(vanished))
		for i, at := range vanished {
			again[i], where[i] = evs[at], driver.AppendResult{ID: evs[at].ID, Lane: placed[at].Lane}
		}
		if err := put(again, where, lanes); err != nil {
			return nil, c.explain(ended(err))
		}
		for i, at := range vanished {
			placed[at] = where[i]
		}
	}
}

// absorbedOf returns the indexes of absorbed events whose holder is not known.
func absorbedOf(placed []driver.AppendResult) []int {
	var absorbed []int
	for i := range placed {
		if placed[i].ID.IsZero() {
			absorbed = append(absorbed, i)
		}
	}
	return absorbed
}

// findHolders writes the ids of the events that hold the dedup keys of absorbed
// events into placed. It returns the absorbed events whose key holder is gone.
func (c *core) findHolders(
	ctx context.Context, tx database, evs []waybill.Event, placed []driver.AppendResult, absorbed []int,
) (vanished []int, err error) {
	tenants, keys := make([]string, len(absorbed)), make([]string, len(absorbed))
	for i, at := range absorbed {
		tenants[i], keys[i] = evs[at].TenantID, evs[at].DedupKey
	}
	var id waybill.ID
	var place int64
	rows, err := tx.query(ctx, c.sql.holders, tx.texts(tenants), tx.texts(keys))
	err = collect(rows, err, func() error {
		placed[absorbed[place-1]].ID = id
		return nil
	}, tx.scanID(&id), &place)
	for _, at := range absorbed {
		if placed[at].ID.IsZero() {
			vanished = append(vanished, at)
		}
	}
	return vanished, err
}

// textArgs converts the arguments of an insert for pgx into arguments that
// every database/sql driver can send.
func textArgs(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case []int16:
			out[i] = sqlDB{}.int16s(v)
		case []int32:
			out[i] = sqlDB{}.int32s(v)
		case []int64:
			out[i] = sqlDB{}.int64s(v)
		case []pgtype.UUID:
			out[i] = array(v, func(u pgtype.UUID) string { return waybill.ID(u.Bytes).UUID() })
		case []pgtype.Text:
			out[i] = array(v, func(t pgtype.Text) string {
				if !t.Valid {
					return "NULL"
				}
				return quoteElement(t.String)
			})
		case []time.Time:
			out[i] = array(v, timeElement)
		case []pgtype.Timestamptz:
			out[i] = array(v, func(t pgtype.Timestamptz) string {
				if !t.Valid {
					return "NULL"
				}
				return timeElement(t.Time)
			})
		case [][]byte:
			out[i] = array(v, func(b []byte) string { return `"\\x` + hex.EncodeToString(b) + `"` })
		case pgtype.UUID:
			out[i] = waybill.ID(v.Bytes).UUID()
		case int16:
			out[i] = int64(v)
		case int32:
			out[i] = int64(v)
		default:
			out[i] = arg
		}
	}
	return out
}

func timeElement(t time.Time) string {
	return strconv.Quote(t.UTC().Format("2006-01-02T15:04:05.999999Z"))
}
