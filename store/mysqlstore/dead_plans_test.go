package mysqlstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// numbers are 900 rows: the numbers from 0 on, 40 types and 40 aggregates.
const numbers = ` SELECT lane + 1, n, UNHEX(LPAD(HEX(n), 32, '0')), CONCAT('Type', n % 40), 'thing', CONCAT('a', n % 40), 1, UTC_TIMESTAMP(6), 0, '1', UTC_TIMESTAMP(6), 1, 0, 0,
 UTC_TIMESTAMP(6) FROM (SELECT a.lane + 30 * b.lane AS n FROM waybill_lane AS a JOIN waybill_lane AS b WHERE a.lane < 30 AND b.lane < 30) AS n, (SELECT `

const deadColumns = ` (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, attempts, replay, holds,
 died_at)`

// Lists and counts of the dead letters of one type or of one aggregate read no
// others, and a page of all dead letters reads no other page.
func TestDeadLettersFollowTheIndexes(t *testing.T) { onBoth(t, testDeadLettersFollowTheIndexes) }

func testDeadLettersFollowTheIndexes(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a", "b")
	exec(t, db, `INSERT INTO waybill_dead`+deadColumns+numbers+`0 AS lane) AS l`)
	exec(t, db, `INSERT INTO waybill_backlog_dead`+deadColumns+numbers+`1024 AS lane) AS l`)
	exec(t, db, `INSERT INTO waybill_backlog_dead`+deadColumns+numbers+`2048 AS lane) AS l`)
	exec(t, db, "ANALYZE TABLE waybill_dead, waybill_backlog_dead")
	db.SetMaxOpenConns(1)
	for name, inspector := range map[string]driver.Inspector{"outbox": s.Driver().OutboxAdmin, "backlog": s.Driver().Backlogs.Backlog(2)} {
		if n, err := inspector.Count(t.Context(), store.Dead, store.Filter{}); n != 900 || err != nil {
			t.Fatalf("%s: %d dead letters, %v", name, n, err)
		}
		for _, f := range []store.Filter{{}, {Type: "Type7"}, {AggregateType: "thing", AggregateID: "a7"}, {Type: "Type7", AggregateID: "a7", Failed: true}} {
			exec(t, db, "FLUSH STATUS")
			if f != (store.Filter{}) {
				n, err := inspector.Count(t.Context(), store.Dead, f)
				if err != nil || n != 23 {
					t.Errorf("%s: %d dead letters match %+v, %v", name, n, f, err)
				}
			}
			list, err := inspector.List(t.Context(), store.Dead, f, 486, 5)
			if err != nil || len(list) != 5 || list[0].Seq != 487 {
				t.Fatalf("%s: %d letters of %+v, %v", name, len(list), f, err)
			}
			if n := handlerReads(t, db); n > 100 {
				t.Errorf("%s: %+v read %d rows and entries of indexes", name, f, n)
			}
		}
	}
}
