package pgstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The read that drains an outbox decodes the wire format by hand: scanning
// twenty columns per row by reflection took longer than the server's own read.
// The peek that answers a repeated request does the same, because the peek is
// its whole cost. All other reads, and other drivers and protocols, use
// scanning.

// rawColumns are the columns of fetchRaw, in the order of rawRow.
const rawColumns = `lane, seq, id, type, aggregate_type, aggregate_id, tenant_id, topic, routing_key, schema_id, schema_version, dedup_key,
 occurred_at, priority, correlation_id, causation_id, headers, content_type, payload, created_at, available_at`

// fetchRaw is fetch without expressions on the columns. The clock is a separate
// row, in the column created_at, with the lane -1 and the timeline as its seq.
// Primary key of outbox (lane, seq).
const fetchRaw = `SELECT r.* FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c(l, after, up_to)
CROSS JOIN LATERAL (
  SELECT ` + rawColumns + ` FROM {outbox} o WHERE o.lane = c.l AND o.seq > c.after AND o.seq <= c.up_to ORDER BY o.seq LIMIT {limit}
) AS r
UNION ALL SELECT -1::smallint, {timeline}(), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0::smallint, NULL, NULL, NULL, NULL, NULL, now(), NULL`

// rawCount is the number of columns. rawTexts marks the text columns, whose
// bytes are the same in every format.
const rawCount = 21

var rawTexts = [rawCount]bool{
	3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 9: true, 11: true, 14: true, 15: true, 16: true, 17: true,
}

// fetchPage reads ready rows from the wire. It reports false if the driver or
// protocol does not send the binary format, or for a backlog, whose rows have
// more columns; nothing was read then.
func (c *core) fetchPage(ctx context.Context, limit int, args ...any) (p driver.Page, ok bool, err error) {
	if c.backlog {
		return p, false, nil
	}
	// The capacity is about the size of the last page.
	p.Rows = make([]store.Row, 0, c.pageSize.Load())
	var d rawDecoder
	size, timeline := 0, int64(0)
	ok, err = c.raw(ctx, limited(c.sql.fetchRaw, limit), rawTexts[:], func(values [][]byte) error {
		if int16(binary.BigEndian.Uint16(values[0])) < 0 {
			p.Now, timeline = rawTime(values[19]), int64(binary.BigEndian.Uint64(values[1]))
			return nil
		}
		// As Page.Add, without a copy of the row.
		if size += len(values[16]) + len(values[18]); size > driver.MaxPageBytes && len(p.Rows) > 0 {
			return driver.ErrPageTooLarge
		}
		p.Rows = append(p.Rows, store.Row{})
		d.row(&p.Rows[len(p.Rows)-1], values)
		return nil
	}, args...)
	if err != nil || !ok {
		return driver.Page{}, ok, err
	}
	if err := c.readOn(timeline, lanesOfRows(p.Rows)); err != nil {
		return driver.Page{}, true, err
	}
	c.pageSize.Store(int64(len(p.Rows) + len(p.Rows)/8))
	return p, true, nil
}

// sweepTexts marks the text columns of a sweep.
var sweepTexts = []bool{false, false, false, true, true, true}

// sweepPage is Sweep from the wire.
func (c *core) sweepPage(ctx context.Context, limit int, args ...any) (seen []driver.RowRef, timeline int64, ok bool, err error) {
	var d refDecoder
	ok, err = c.raw(ctx, limited(c.sql.sweep, limit), sweepTexts, func(v [][]byte) error {
		if int16(binary.BigEndian.Uint16(v[0])) < 0 {
			timeline = int64(binary.BigEndian.Uint64(v[1]))
			return nil
		}
		seen = append(seen, d.ref(v))
		return nil
	}, args...)
	return seen, timeline, ok, err
}

// refDecoder decodes the rows of a sweep. It allocates a text that repeats from
// row to row once.
type refDecoder struct{ tenant, typ, id string }

// ref decodes one row.
func (d *refDecoder) ref(v [][]byte) driver.RowRef {
	s := driver.RowRef{Key: store.Key{Lane: int(int16(binary.BigEndian.Uint16(v[0]))), Seq: int64(binary.BigEndian.Uint64(v[1]))}}
	copy(s.ID[:], v[2])
	s.Tenant = same(&d.tenant, v[3])
	if len(v[5]) > 0 {
		s.Aggregate = store.Aggregate{Tenant: s.Tenant, Type: same(&d.typ, v[4]), ID: same(&d.id, v[5])}
	}
	return s
}

// raw runs a statement that follows an index and calls fn with the bytes of
// every row, as wire does.
func (c *core) raw(ctx context.Context, query string, texts []bool, fn func([][]byte) error, args ...any) (ok bool, err error) {
	db, ok := c.binary()
	if !ok {
		return false, nil
	}
	rows, err := db.walk(ctx, query, args...)
	if err != nil {
		return true, c.explain(err)
	}
	return c.wire(rows, texts, fn)
}

// binary returns the database if its columns come in the binary format, as far
// as known.
func (c *core) binary() (pgxDB, bool) {
	db, ok := c.db.(pgxDB)
	return db, ok && !c.textual.Load()
}

// wire calls fn with the bytes of every row, which are valid until fn returns.
// It reports false if the columns do not come in the binary format; texts marks
// the columns for which the format does not matter.
func (c *core) wire(rows pgx.Rows, texts []bool, fn func([][]byte) error) (ok bool, err error) {
	defer rows.Close()
	fields := rows.FieldDescriptions()
	if len(fields) != len(texts) {
		// A failed statement has no columns and reports its error on Close.
		rows.Close()
		if err := rows.Err(); err != nil {
			return true, c.explain(err)
		}
		return true, fmt.Errorf("pgstore: read: %d columns, want %d", len(fields), len(texts))
	}
	for i := range fields {
		if fields[i].Format != pgx.BinaryFormatCode && !texts[i] {
			// The protocol belongs to the pool and does not change.
			c.textual.Store(true)
			return false, nil
		}
	}
	for rows.Next() {
		if err := fn(rows.RawValues()); err != nil {
			return true, err
		}
	}
	return true, c.explain(rows.Err())
}

// rawDecoder decodes rows from the wire. It allocates a text that repeats from
// row to row once, and copies bytes into large blocks.
type rawDecoder struct {
	typ, aggregateType, tenant, topic string
	routing, schema, contentType      string
	piece                             []byte
}

// row decodes one row.
func (d *rawDecoder) row(row *store.Row, v [][]byte) {
	row.Lane = int(int16(binary.BigEndian.Uint16(v[0])))
	row.Seq = int64(binary.BigEndian.Uint64(v[1]))
	copy(row.ID[:], v[2])
	ev := &row.Event
	ev.ID = row.ID
	ev.Type = same(&d.typ, v[3])
	ev.AggregateType = same(&d.aggregateType, v[4])
	ev.AggregateID = string(v[5])
	ev.TenantID = same(&d.tenant, v[6])
	ev.Topic = same(&d.topic, v[7])
	ev.RoutingKey = same(&d.routing, v[8])
	ev.SchemaID = same(&d.schema, v[9])
	ev.SchemaVersion = int(int32(binary.BigEndian.Uint32(v[10])))
	ev.DedupKey = string(v[11])
	ev.OccurredAt = rawTime(v[12])
	ev.Priority = int(int16(binary.BigEndian.Uint16(v[13])))
	ev.CorrelationID, ev.CausationID = string(v[14]), string(v[15])
	ev.ContentType = same(&d.contentType, v[17])
	ev.Payload = d.bytes(v[18])
	row.CreatedAt = rawTime(v[19])
	if v[20] != nil {
		row.DueAt = rawTime(v[20])
		ev.AvailableAt = row.DueAt
	}
	eventrow.Finish(row, string(v[16]))
}

// same returns the text of b, and reuses the last text if it is equal.
func same(last *string, b []byte) string {
	if string(b) != *last {
		*last = string(b)
	}
	return *last
}

// pieceSize is the number of payload bytes that share a block of memory. The
// block is freed as a whole.
const pieceSize = 64 << 10

// bytes copies b.
func (d *rawDecoder) bytes(b []byte) []byte {
	if len(b) > pieceSize/4 {
		return append([]byte(nil), b...)
	}
	if cap(d.piece)-len(d.piece) < len(b) {
		d.piece = make([]byte, 0, pieceSize)
	}
	start := len(d.piece)
	d.piece = append(d.piece, b...)
	return d.piece[start:len(d.piece):len(d.piece)]
}

// postgresEpoch is the start of PostgreSQL's times, in microseconds since 1970.
const postgresEpoch = 946684800 * 1_000_000

// rawTime decodes a timestamptz.
func rawTime(b []byte) time.Time {
	if len(b) != 8 {
		return time.Time{}
	}
	micros := int64(binary.BigEndian.Uint64(b))
	// Infinity, or close to PostgreSQL's last year.
	if micros > math.MaxInt64-postgresEpoch {
		return eventrow.Latest()
	}
	return eventrow.Clamp(time.UnixMicro(micros + postgresEpoch))
}
