package drivertest

import (
	"strings"

	"github.com/waybillhq/waybill"
)

// Odd is an event content that is possible only if the row was inserted with
// SQL. Run delivers all of them. A sink that does not use Run delivers them in
// a test of its own.
type Odd struct {
	// Name describes the content.
	Name string
	// Change modifies a delivery.
	Change func(d *waybill.Delivery)
	// MayTravel allows a sink to deliver the event, because only some protocols
	// have such a limit. For any other event the sink must return a permanent
	// error.
	MayTravel bool
}

// Odds returns contents that no outbox writes: control characters and invalid
// UTF-8 in each text of an event, and texts that are too long.
func Odds() []Odd {
	var odds []Odd
	for _, odd := range []struct{ name, text string }{
		{"CR LF", "a\r\nce-id: forged"},
		{"LF", "a\nb"},
		{"NUL", "a\x00b"},
		{"escape", "a\x1b[2Jb"},
		{"DEL", "a\x7fb"},
		{"C1", "a\u0085b"},
		{"invalid UTF-8", "a\xffb"},
	} {
		for _, field := range []struct {
			name string
			set  func(d *waybill.Delivery, text string)
		}{
			{"type", func(d *waybill.Delivery, text string) { d.Type = text }},
			{"topic", func(d *waybill.Delivery, text string) { d.Topic = text }},
			{"type and topic", func(d *waybill.Delivery, text string) { d.Type, d.Topic = text, text }},
			{"header", func(d *waybill.Delivery, text string) { d.Headers = map[string]string{"x": text} }},
			{"header's name", func(d *waybill.Delivery, text string) { d.Headers = map[string]string{text: "x"} }},
			{"traceparent", func(d *waybill.Delivery, text string) { d.Headers = map[string]string{"traceparent": text} }},
			{"content type", func(d *waybill.Delivery, text string) { d.ContentType = text }},
			{"routing key", func(d *waybill.Delivery, text string) { d.RoutingKey = text }},
			{"tenant", func(d *waybill.Delivery, text string) { d.TenantID = text }},
			{"aggregate type", func(d *waybill.Delivery, text string) { d.AggregateType = text }},
			{"aggregate id", func(d *waybill.Delivery, text string) { d.AggregateID = text }},
			{"schema", func(d *waybill.Delivery, text string) { d.SchemaID = text }},
			{"dedup key", func(d *waybill.Delivery, text string) { d.DedupKey = text }},
			{"correlation id", func(d *waybill.Delivery, text string) { d.CorrelationID = text }},
			{"causation id", func(d *waybill.Delivery, text string) { d.CausationID = text }},
		} {
			odds = append(odds, Odd{Name: odd.name + " in the " + field.name, Change: func(d *waybill.Delivery) { field.set(d, odd.text) }})
		}
	}
	long := strings.Repeat("n", 300)
	for name, change := range map[string]func(d *waybill.Delivery){
		"a long name of a header":   func(d *waybill.Delivery) { d.Headers = map[string]string{long: "x"} },
		"a long type":               func(d *waybill.Delivery) { d.Type = long },
		"a long content type":       func(d *waybill.Delivery) { d.ContentType = "text/" + long },
		"a long routing key":        func(d *waybill.Delivery) { d.RoutingKey = long },
		"a huge header":             func(d *waybill.Delivery) { d.Headers = map[string]string{"x": strings.Repeat("v", 200<<10)} },
		"an empty name of a header": func(d *waybill.Delivery) { d.Headers = map[string]string{"": "x"} },
	} {
		odds = append(odds, Odd{Name: name, Change: change, MayTravel: true})
	}
	return odds
}
