package broker_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

func TestTemplate(t *testing.T) {
	dotted := broker.TopicRules{Separator: '.', Max: 40, Allowed: func(c byte) bool { return c > ' ' && c < 0x7f && c != '*' && c != '>' }}
	for _, c := range []struct {
		pattern string
		ev      waybill.Event
		want    string // empty: rejected
	}{
		{"{topic}", waybill.Event{Type: "a", Topic: "b.c"}, "b.c"},
		{"{topic}", waybill.Event{Type: "a"}, "a"},
		{"orders.{type}", waybill.Event{Type: "order.placed"}, "orders.order.placed"},
		{"{tenant}.{aggregatetype}.x", waybill.Event{Type: "a", TenantID: "t", AggregateType: "order"}, "t.order.x"},
		{"{tenant:none}.{type}", waybill.Event{Type: "a"}, "none.a"},
		{"{tenant}.{type}", waybill.Event{Type: "a"}, ""},
		{"{tenant}.{type}", waybill.Event{Type: "a", TenantID: "t.other"}, ""},
		{"{tenant}.{type}", waybill.Event{Type: ">", TenantID: "t"}, ""},
		{"{tenant}.{type}", waybill.Event{Type: "a b", TenantID: "t"}, ""},
		{"x.{aggregatetype}", waybill.Event{Type: "a", AggregateType: "o.p"}, ""},
		{"{type}", waybill.Event{Type: strings.Repeat("x", 41)}, ""},
		{"{type}", waybill.Event{Type: "a..b"}, ""},
		{"{type}", waybill.Event{Type: "ü"}, ""},
	} {
		topics, err := dotted.Template(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		got, err := topics(&c.ev)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s of %+v: %q, %v, want %q", c.pattern, c.ev, got, err, c.want)
		}
	}
	for _, pattern := range []string{"", "{", "}", "a}b", "{type", "{unknown}", "{}", "a b", "orders.>", "{tenant:a b}"} {
		if _, err := dotted.Template(pattern); err == nil {
			t.Errorf("the pattern %q is accepted", pattern)
		}
	}
}
