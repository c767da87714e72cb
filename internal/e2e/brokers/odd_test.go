//go:build linux || darwin

package brokers_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/relay"
)

// TestAnOddRowIsDeadAlone: a row that was inserted with plain SQL may contain
// control characters, which could be read as another header. Over every broker
// such an event is dead after one attempt, and the other events of the same
// insert arrive.
func TestAnOddRowIsDeadAlone(t *testing.T) {
	for _, s := range stands() {
		t.Run(s.name, func(t *testing.T) {
			start := func() (victim, string) { return nil, s.shared(t) }
			if s.name == "webhook" { // only the test's own endpoint can be read
				start = func() (victim, string) { return s.start(t) }
			}
			v, address := start()
			there := s.place(t, address, v)
			f := newFlow(t, plan{aggregates: 1}, there)
			sink, end, err := there.sink(t.Context(), nil)
			must(t, err)
			defer end()

			odd := `(SELECT * FROM (VALUES
				('Odd', $1, '{"x": "a\r\nce_id: forged"}'), ('Odd', $1, '{"a\nb": "x"}'), ('Odd', $1, '{"x": "a\u001b[2Jb"}'), ('Odd', $1, '{"traceparent": "a\r\nb"}'),
				(E'a\r\nb', $1, NULL), ('Odd', E'a\nb', NULL)) odd (type, topic, headers))`
			const odds, neighbors = 6, 12
			f.exec(`INSERT INTO waybill_outbox (type, topic, aggregate_type, aggregate_id, headers, payload)
				SELECT 'Plain', $1, 'account', 'n' || n, '{"x": "y"}', convert_to('{"aggregate": "n' || n || '", "number": 1}', 'UTF8') FROM generate_series(1, 6) n
				UNION ALL SELECT type, topic, 'account', 'odd' || row_number() OVER (), headers, convert_to('{"aggregate": "odd"}', 'UTF8') FROM `+odd+` o
				UNION ALL SELECT 'Plain', $1, 'account', 'n' || n, NULL, convert_to('{"aggregate": "n' || n || '", "number": 1}', 'UTF8') FROM generate_series(7, 12) n`, there.topic())

			r, err := relay.New(f.db, sink, relay.Config{})
			must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- r.Run(ctx) }()
			defer func() { stop(); must(t, <-ran) }()
			await(t, "empty outbox", func() bool { return f.count(`SELECT count(*) FROM waybill_outbox`) == 0 })
			if dead := f.count(`SELECT count(*) FROM waybill_dead WHERE aggregate_id LIKE 'odd%' AND attempts = 1 AND (last_error LIKE '%control character%' OR last_error LIKE '%topic%')`); dead != odds {
				t.Errorf("%d of %d odd events are dead after one attempt", dead, odds)
			}
			if others := f.count(`SELECT count(*) FROM waybill_dead`) + f.count(`SELECT count(*) FROM waybill_delayed`); others != odds {
				t.Errorf("%d events are dead or wait, want the %d odd ones", others, odds)
			}
			payloads, err := there.read(t.Context())
			must(t, err)
			var got []string
			for _, payload := range payloads {
				var l letter
				must(t, json.Unmarshal(payload, &l))
				got = append(got, l.Aggregate)
			}
			slices.Sort(got)
			if got = slices.Compact(got); len(got) != neighbors || slices.ContainsFunc(got, func(name string) bool { return !strings.HasPrefix(name, "n") }) {
				t.Errorf("what arrived is of %v, want the %d neighbors", got, neighbors)
			}
		})
	}
}

// count returns the number that a query returns.
func (f *flow) count(query string) (n int) {
	f.Helper()
	must(f.T, f.pool.QueryRow(f.Context(), query).Scan(&n))
	return n
}
