package mysqlstore_test

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// Settings of a data source name that change the encoding of values, or the
// server's interpretation of them.
var settings = map[string]func(*mysql.Config){
	"default":           nil,
	"parseTime=false":   func(c *mysql.Config) { c.ParseTime = false },
	"interpolateParams": func(c *mysql.Config) { c.InterpolateParams = true },
	"loc":               func(c *mysql.Config) { c.Loc = time.FixedZone("somewhere", -9*3600) },
	"time_zone":         param("time_zone", "'+05:00'"),
	"loc and time_zone": func(c *mysql.Config) {
		c.InterpolateParams, c.Loc = true, time.FixedZone("somewhere", 7*3600)
		param("time_zone", "'-08:00'")(c)
	},
	"clientFoundRows":            func(c *mysql.Config) { c.ClientFoundRows = true },
	"multiStatements":            func(c *mysql.Config) { c.MultiStatements = true },
	"charset=utf8":               charset("utf8"),
	"charset=utf8 interpolate":   func(c *mysql.Config) { charset("utf8")(c); c.InterpolateParams = true },
	"charset=latin1":             charset("latin1"),
	"charset=latin1 interpolate": func(c *mysql.Config) { charset("latin1")(c); c.InterpolateParams = true },
	"sql_mode empty":             param("sql_mode", "''"),
	"sql_mode ANSI":              param("sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'"),
	"NO_BACKSLASH_ESCAPES interpolated": func(c *mysql.Config) {
		c.InterpolateParams = true
		param("sql_mode", "'NO_BACKSLASH_ESCAPES'")(c)
	},
	"READ COMMITTED":       param(isolation, "'READ-COMMITTED'"),
	"SERIALIZABLE":         param(isolation, "'SERIALIZABLE'"),
	"group_concat_max_len": param("group_concat_max_len", "4"),
}

func param(name, value string) func(*mysql.Config) {
	return func(c *mysql.Config) { c.Params = map[string]string{name: value} }
}

func charset(name string) func(*mysql.Config) {
	return func(c *mysql.Config) {
		if err := c.Apply(mysql.Charset(name, "")); err != nil {
			panic(err)
		}
	}
}

// strange are texts that a character set or a collation might change.
var strange = []string{
	"abc", "ABC", "abc ", "abc  ", " abc", "ábc", "a\u0301bc", "straße", "STRASSE", "日本語", "😀", "😀 ", "ǅ", "İ", `a\b`, `a\\`, "it's", `"x"`,
	"a%", "?", "`x`", "--", "\u00a0", "\U0010ffff", "{lane}", "x'00'",
}

// full returns an event with every field set, with texts derived from text.
func full(text string) waybill.Event {
	ev := waybill.Event{
		Type: "T" + text, AggregateType: "A" + text, AggregateID: "I" + text, TenantID: "N" + text, Topic: "P" + text, RoutingKey: "R" + text,
		SchemaID: "S" + text, SchemaVersion: 7, DedupKey: "D" + text, OccurredAt: time.Date(2024, 2, 29, 23, 59, 59, 123456000, time.UTC),
		Priority: 32767, CorrelationID: "C" + text, CausationID: "U" + text, Headers: map[string]string{text: text, "k": text + text},
		ContentType: "X" + text, Payload: []byte("\x00\xff\\'\"" + text),
	}
	return eventfill.Defaults(ev)
}

func sameEvent(t *testing.T, got, want waybill.Event) {
	t.Helper()
	want.Delay, want.AvailableAt, got.AvailableAt = 0, time.Time{}, time.Time{}
	headers := maps.Equal(got.Headers, want.Headers)
	payload := string(got.Payload) == string(want.Payload)
	got.Headers, want.Headers, got.Payload, want.Payload = nil, nil, nil, nil
	if !headers || !payload || !equalEvents(got, want) {
		t.Errorf("read %+v, written %+v (headers the same: %t, payload the same: %t)", got, want, headers, payload)
	}
}

// equalEvents compares everything but payload and headers.
func equalEvents(a, b waybill.Event) bool {
	return a.ID == b.ID && a.Type == b.Type && a.AggregateType == b.AggregateType && a.AggregateID == b.AggregateID && a.TenantID == b.TenantID &&
		a.Topic == b.Topic && a.RoutingKey == b.RoutingKey && a.SchemaID == b.SchemaID && a.SchemaVersion == b.SchemaVersion &&
		a.DedupKey == b.DedupKey && a.OccurredAt.Equal(b.OccurredAt) && a.Priority == b.Priority &&
		a.CorrelationID == b.CorrelationID && a.CausationID == b.CausationID && a.ContentType == b.ContentType
}

// With any data source name, events are read as they were written, in the right
// lane, at the right time, from every table.
func TestDataSourceNames(t *testing.T) { onBoth(t, testDataSourceNames) }

func testDataSourceNames(t *testing.T) {
	for name, change := range settings {
		t.Run(name, func(t *testing.T) {
			s, db := openStore(t, change)
			roundTrip(t, s, db)
		})
	}
}

func roundTrip(t *testing.T, s *mysqlstore.Store, db *sql.DB) {
	t.Helper()
	var evs []waybill.Event
	for _, text := range strange {
		evs = append(evs, full(text))
	}
	// The limits of the storable range.
	for _, year := range []int{1000, 1582, 1969, 9999} {
		ev := event("years")
		ev.OccurredAt = time.Date(year, 12, 31, 23, 59, 59, 999999000, time.UTC)
		evs = append(evs, ev)
	}
	now := clock(t, s.Driver().Relay)
	later, past := event("a"), event("a")
	later.AvailableAt, past.AvailableAt = now.Add(24*time.Hour), now.Add(-time.Hour)
	soon := full("soon 😀")
	soon.Delay = time.Microsecond
	for i, placed := range write(t, s, db, append(slices.Clone(evs), later, past, soon)...) {
		if i < len(evs) && placed.ID != evs[i].ID {
			t.Errorf("event %d (%q) was absorbed by another", i, evs[i].Type)
		}
	}
	write(t, s, db, full("once more")) // alone: another statement

	rows := byID(ready(t, s))
	for _, ev := range append(slices.Clone(evs), past) {
		row, ok := rows[ev.ID]
		if !ok || row.Err != nil {
			t.Errorf("event %q: ready %t, %v", ev.Type, ok, row.Err)
			continue
		}
		sameEvent(t, row.Event, ev)
		if want := driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, 32); row.Lane != want {
			t.Errorf("event %q is in lane %d, want %d", ev.Type, row.Lane, want)
		}
		if !row.DueAt.IsZero() || row.CreatedAt.Before(now) || row.CreatedAt.Location() != time.UTC || row.CreatedAt.After(now.Add(time.Hour)) {
			t.Errorf("event %q: created at %v, due at %v; it is %v", ev.Type, row.CreatedAt, row.DueAt, now)
		}
	}
	if len(rows) != len(evs)+2 {
		t.Errorf("%d events are ready, want %d", len(rows), len(evs)+2)
	}

	due := awaitDue(t, s.Driver().Relay, soon.ID)
	sameEvent(t, due.Event, soon)
	if due.DueAt.Before(due.CreatedAt) || due.DueAt.After(due.CreatedAt.Add(time.Minute)) {
		t.Errorf("an event with a delay of %v, written at %v, is due at %v", soon.Delay, due.CreatedAt, due.DueAt)
	}
	if at := ask[int64](t, db, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at) FROM waybill_delayed WHERE id = ?", later.ID[:]); at != later.AvailableAt.UnixMicro() {
		t.Errorf("an event for %v is due at %v", later.AvailableAt, time.UnixMicro(at).UTC())
	}
	settleAll(t, s, rows, due)
}

// settleAll moves rows through all other tables.
func settleAll(t *testing.T, s *mysqlstore.Store, rows map[waybill.ID]store.Row, due store.Row) {
	t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "test 😀"}
	m, err := s.Driver().Relay.Heartbeat(t.Context(), node, time.Hour)
	if err != nil || len(m.Nodes) != 1 || m.Nodes[0] != node || len(m.Lanes) != 32 {
		t.Fatalf("Heartbeat: %+v, %v", m, err)
	}
	leases, err := s.Driver().Relay.Acquire(t.Context(), node, allLanes(), 1)
	if err != nil || len(leases) != 32 {
		t.Fatalf("Acquire: %d leases, %v", len(leases), err)
	}
	settlement := driver.Settlement{Leases: leases, History: true, Done: []driver.Result{{Lane: due.Lane, ID: due.ID}}}
	put := map[waybill.ID]string{}
	i := 0
	for id, row := range rows {
		result := driver.Result{Lane: row.Lane, ID: id, Attempts: i, Holds: i%2 == 0, Error: strange[i%len(strange)] + strings.Repeat("😀", i*100)}
		switch i % 3 {
		case 0:
			settlement.Done = append(settlement.Done, result)
		case 1:
			settlement.Retry = append(settlement.Retry, result)
			put[id] = driver.CutError(result.Error)
		case 2:
			settlement.Dead = append(settlement.Dead, result)
		}
		i++
	}
	settled, err := s.Driver().Relay.Settle(t.Context(), settlement)
	if err != nil || len(settled.Moved) != len(rows)+1 || len(settled.Held) != 32 {
		t.Fatalf("Settle moved %d of %d, held %d lanes: %v", len(settled.Moved), len(rows)+1, len(settled.Held), err)
	}
	for id, text := range put {
		row := awaitDue(t, s.Driver().Relay, id)
		sameEvent(t, row.Event, rows[id].Event)
		if row.LastError != text || row.Key != rows[id].Key {
			t.Errorf("deferred as %+v with the error %.40q, want %+v and %.40q", row.Key, row.LastError, rows[id].Key, text)
		}
	}
	for id := range rows {
		if yes, err := s.Driver().Outbox.Committed(t.Context(), id); err != nil || !yes {
			t.Errorf("Committed: %v, %v", yes, err)
		}
	}
	if yes, err := s.Driver().Outbox.Committed(t.Context(), waybill.NewID()); err != nil || yes {
		t.Errorf("Committed of an event that never was: %v, %v", yes, err)
	}
	if err := s.Driver().Relay.Release(t.Context(), leases, true); err != nil {
		t.Error(err)
	}
	if err := s.Driver().Relay.Leave(t.Context(), node); err != nil {
		t.Error(err)
	}
}

func byID(rows []store.Row) map[waybill.ID]store.Row {
	m := make(map[waybill.ID]store.Row, len(rows))
	for _, row := range rows {
		m[row.ID] = row
	}
	return m
}

// clock returns the database's time.
func clock(t testing.TB, s driver.Reader) time.Time {
	t.Helper()
	page, err := s.Fetch(t.Context(), nil, 1)
	if err != nil || page.Now.IsZero() {
		t.Fatalf("the database's clock: %v, %v", page.Now, err)
	}
	if d := time.Since(page.Now); d > time.Minute || d < -time.Minute {
		t.Fatalf("the database's clock says %v, here it is %v", page.Now, time.Now())
	}
	return page.Now
}

// awaitDue polls until a deferred event is due.
func awaitDue(t testing.TB, s driver.Reader, id waybill.ID) store.Row {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		page, err := s.Due(ctx, allLanes(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if row, ok := byID(page.Rows)[id]; ok {
			return row
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("event %s does not become due", id)
		}
	}
}

// A server may refuse a text that is invalid in the connection's character set,
// even for a column of bytes. Text beyond ASCII is therefore sent as bytes.
func TestOnlyASCIITravelsAsText(t *testing.T) {
	for _, text := range strange {
		args, err := mysqlstore.Arguments(full(text))
		if err != nil {
			t.Fatal(err)
		}
		for column, arg := range args {
			if sent, ok := arg.(string); ok && strings.ContainsFunc(sent, func(r rune) bool { return r >= 0x80 }) {
				t.Errorf("%s of %q is sent as text", column, text)
			}
		}
	}
}
