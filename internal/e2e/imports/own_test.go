package imports_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
)

// TestOwnTable: the guide "From your own outbox table". Imported events come
// before those that the service writes afterwards.
func TestOwnTable(t *testing.T) {
	p := postgres(t)
	p.exec(p.blocks("sql own")[0])
	for i := range 1203 {
		p.exec("INSERT INTO shop_outbox (event_type, order_id, body, trace, sent_at) VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN now() END)",
			"OrderPlaced", fmt.Sprintf("o-%d", i%4), numbered(i), fmt.Sprintf(`{"trace": "t-%d"}`, i), i < 3)
	}
	blocks := p.blocks("sh own")
	same(p, "the output", p.shell(blocks[0]), "would import: 1200\nimported: 1200\nmarked: 1200\n")
	same(p, "rows that wait", p.number("SELECT count(*) FROM shop_outbox WHERE sent_at IS NULL"), 0)
	if out := p.shell(blocks[1]); !strings.Contains(out, "1200") || strings.Count(out, "OrderPlaced") != 20 {
		p.Errorf("the check says:\n%s", out)
	}
	ev := waybill.NewEvent("OrderPlaced", 9999)
	ev.AggregateType, ev.AggregateID = "order", "o-3"
	p.write(ev)
	got := p.deliver()
	same(p, "the number of events", count(got), 1201)
	want := []string{}
	for i := 3; i < 1203; i += 4 {
		want = append(want, numbered(i)+" trace=t-"+fmt.Sprint(i))
	}
	want = append(want, "9999 ")
	same(p, "the events of o-3", fields(got["o-3"], func(ev waybill.Event) string { return payload(ev) + " " + headers(ev) }), strings.Join(want, ", "))
	same(p, "another run", p.shell("sh shop.sh --json | tr -d ' \\n'"),
		`{"source":"table","table":"public.shop_outbox","waiting":0,"imported":0,"imported_before":0,"gone":0,"marked":0,"deleted":0,"invalid":0}`)
}
