package soak

import (
	"context"
	"database/sql"
	"encoding/json"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
)

// The types of events.
const (
	moved  = "SoakMoved"
	bought = "SoakBought"
	thing  = "account"
)

// unordered is the aggregate of events without an order.
const unordered = -1

// topics are the topics of events; each aggregate has one.
var topics = []string{"a", "b"} //nolint:gochecknoglobals // never changed

// entry is a committed event, as its producer wrote it to the ledger in the
// same transaction.
type entry struct {
	id               waybill.ID
	name             int
	number, amount   int64
	topic            string
	payload, headers uint32
	due, at          time.Time // due is zero: at once
}

// load is the payload of an event.
type load struct {
	Name   int    `json:"name"`
	Number int64  `json:"number"`
	Amount int64  `json:"amount"`
	Pad    string `json:"pad,omitempty"`
}

// draft returns an event of an aggregate, and its entry.
func (c *child) draft(name int, number int64) (waybill.Event, entry) {
	e := entry{id: waybill.NewID(), name: name, number: number, amount: 1 + c.random.Int64N(1000)}
	e.topic = topics[c.random.IntN(len(topics))]
	ev := waybill.Event{ID: e.id, Type: moved, AggregateType: thing}
	if name != unordered {
		e.topic = topics[name%len(topics)]
		ev.AggregateID = strconv.Itoa(name)
	} else if c.random.IntN(3) == 0 {
		ev.Delay = time.Second + time.Duration(c.random.IntN(2000))*time.Millisecond
		if c.Sabotage == LoseDelayed || c.Sabotage == Early {
			ev.Delay *= 4
		}
	}
	ev.Topic = e.topic
	if n := c.random.IntN(4); n > 0 {
		ev.Headers = make(map[string]string, n)
		for i := range n {
			ev.Headers["h"+strconv.Itoa(i)] = strconv.Itoa(c.random.IntN(1 << 20))
		}
	}
	pad := 0
	if c.random.IntN(5) == 0 {
		pad = c.random.IntN(4000)
	}
	ev.Payload, _ = json.Marshal(load{name, number, e.amount, strings.Repeat("x", pad)}) // numbers and a text
	e.payload, e.headers = digest(&ev)
	e.at = time.Now()
	if ev.Delay > 0 {
		e.due = e.at.Add(ev.Delay)
	}
	return ev, e
}

// digest returns the checksums of an event's payload and headers.
func digest(ev *waybill.Event) (payload, headers uint32) {
	h := crc32.NewIEEE()
	for _, name := range slices.Sorted(maps.Keys(ev.Headers)) {
		_, _ = h.Write([]byte(name + "=" + ev.Headers[name] + "\n"))
	}
	return crc32.ChecksumIEEE(ev.Payload), h.Sum32()
}

// record writes entries to the ledger.
func (t tables) record(ctx context.Context, tx *sql.Tx, entries []entry) error {
	var b strings.Builder
	var args []any
	b.WriteString(`INSERT INTO {ledger} (id, name, number, amount, topic, payload, headers, due_at, written_at) VALUES `)
	for i, e := range entries {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("(?, ?, ?, ?, ?, ?, ?, ?, ?)")
		args = append(args, e.id.String(), e.name, e.number, e.amount, e.topic, int64(e.payload), int64(e.headers), nanos(e.due), nanos(e.at))
	}
	_, err := tx.ExecContext(ctx, t.fill(b.String()), args...)
	return err
}

// nanos returns a time as nanoseconds; 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// advance adds n to the counter of an aggregate, and returns its new value. The
// row stays locked until the end of the transaction, so the numbers of an
// aggregate are in the order of the commits.
func (t tables) advance(ctx context.Context, tx *sql.Tx, name, n int) (int64, error) {
	if _, err := tx.ExecContext(ctx, t.fill(`UPDATE {source} SET n = n + ? WHERE name = ?`), n, name); err != nil {
		return 0, err
	}
	var last int64
	err := tx.QueryRowContext(ctx, t.fill(`SELECT n FROM {source} WHERE name = ?`), name).Scan(&last)
	return last, err
}
