package settings

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// loadText loads a file with the given text.
func loadText(t *testing.T, text string, src Sources) (*Loaded, error) {
	t.Helper()
	if err := os.WriteFile("x.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	src.Config = "x.yaml"
	return Load(src)
}

// TestDestinations checks that every setting of a destination is read, that a
// setting that is omitted has the relay's value, and that entries have either
// of two forms.
func TestDestinations(t *testing.T) {
	t.Chdir(t.TempDir())
	const fields = `
sink: {event-source: shop, secret: whsec_c2hhcmVk}
relay: {workers: 6, max-attempts: off, backoff-series: [1s, 2s], deliver-timeout: 7s}
destinations:
`
	const asMap = `  billing: {sink: "redis://u:p4ssw0rd@h/0", types: [OrderPlaced, "a,b"], on-dead: block}
  partner:
    sink: {url: "https://h/T0KEN", secret-file: secret, public-only: true}
    types: OrderPlaced, OrderPaid
    aggregate_types: [order]
    tenants: ["", acme]
    rate: 50/s
    concurrency: 2
    max_attempts: 30
    backoff_base: 2s
    backoff_max: 1h
    unknown_grace: 3s
    deliver-timeout: 4s
    divert-after: off
    pause_after: off
`
	const asList = `  - {name: billing, sink: "redis://u:p4ssw0rd@h/0", types: [OrderPlaced, "a,b"], on_dead: block}
  - name: partner
    sink: {url: "https://h/T0KEN", secret_file: secret, public_only: true}
    types: [OrderPlaced, OrderPaid]
    aggregate-types: order
    tenants: ["", acme]
    rate: 50
    concurrency: 2
    max-attempts: 30
    backoff-base: 2s
    backoff-max: 60m
    unknown-grace: 3s
    deliver_timeout: 4s
    divert_after: -1
    pause-after: -1
`
	if err := os.WriteFile("secret", []byte("whsec_b3du\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{asMap, asList} {
		l, err := loadText(t, fields+text, Sources{})
		if err != nil {
			t.Fatal(err)
		}
		s := l.Relays[0]
		want := []Destination{{
			Name: "billing", Sink: Sink{URL: NewSecret("redis://u:p4ssw0rd@h/0"), EventSource: "shop", Secret: NewSecret("whsec_c2hhcmVk")},
			Types: []string{"OrderPlaced", "a,b"}, Concurrency: 6, MaxAttempts: -1, BackoffBase: 200 * time.Millisecond, BackoffMax: time.Minute,
			BackoffSeries: []time.Duration{time.Second, 2 * time.Second}, DeliverTimeout: 7 * time.Second, OnDead: "block", DivertAfter: 250 * time.Millisecond, PauseAfter: 100,
		}, {
			Name: "partner", Sink: Sink{URL: NewSecret("https://h/T0KEN"), EventSource: "shop", Secret: NewSecret("whsec_b3du"), PublicOnly: true},
			Types: []string{"OrderPlaced", "OrderPaid"}, AggregateTypes: []string{"order"}, Tenants: []string{"", "acme"}, Rate: 50, Concurrency: 2, MaxAttempts: 30,
			BackoffBase: 2 * time.Second, BackoffMax: time.Hour, BackoffSeries: []time.Duration{}, UnknownGrace: 3 * time.Second, DeliverTimeout: 4 * time.Second,
			OnDead: "continue", DivertAfter: -1, PauseAfter: -1,
		}}
		if got := fmt.Sprintf("%#v", s.Destinations); got != fmt.Sprintf("%#v", want) {
			t.Errorf("got  %s\nwant %#v", got, want)
		}
		if !s.Sink.URL.IsZero() {
			t.Errorf("the relay has the sink %s, too", s.Sink.URL)
		}
		if s.Destinations[1].Sink.Secret.Reveal() != "whsec_b3du" || s.Destinations[0].Sink.URL.Reveal() != "redis://u:p4ssw0rd@h/0" {
			t.Error("the secrets are not those of the file")
		}
	}
}

// TestDestinationValues checks the list of the values: their names, texts and
// sources, and that it shows no secret.
func TestDestinationValues(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := loadText(t, "relay: {workers: 6}\ndestinations:\n  billing:\n    sink: redis://u:p4ssw0rd@h/0\n    rate: 90/m\n    max_attempts: 3\n    tenants: ['', acme]\n", Sources{})
	if err != nil {
		t.Fatal(err)
	}
	s := l.Relays[0]
	for name, want := range map[string][3]string{ // text, source, default
		"destinations.billing.sink.url":     {"redis://u:xxxxx@h/0", "x.yaml:4", ""},
		"destinations.billing.rate":         {"90/m", "x.yaml:5", "off"},
		"destinations.billing.max-attempts": {"3", "x.yaml:6", "10"},
		"destinations.billing.tenants":      {`"",acme`, "x.yaml:7", ""},
		"destinations.billing.concurrency":  {"6", "default", "6"},
		"destinations.billing.divert-after": {"250ms", "default", "250ms"},
		"sink.url":                          {"", "default", "nats:embedded"},
	} {
		v := valueOf(t, s, name)
		if got := [3]string{v.Text, v.Source, v.Key.Default}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if strings.HasPrefix(name, "destinations.") && (v.Key.Flag() != "" || v.Key.Variable() != "" || v.Key.Unit == "" || v.Key.Help == "") {
			t.Errorf("%s: flag %q, variable %q, unit %q, help %q", name, v.Key.Flag(), v.Key.Variable(), v.Key.Unit, v.Key.Help)
		}
	}
	for _, v := range s.Values() {
		if strings.Contains(v.Text+v.Key.Default, "p4ssw0rd") {
			t.Errorf("%s shows a password: %q", v.Key.Name, v.Text)
		}
	}
	if got := NewScrubber(s.Secrets()...).Clean("no route to p4ssw0rd"); strings.Contains(got, "p4ssw0rd") {
		t.Errorf("the scrubber does not know the secrets of destinations: %s", got)
	}
	for _, k := range DestinationKeys() {
		if k.Default != "" && strings.Contains(k.Default, ".") {
			if k.Default = valueOf(t, s, k.Default).Text; k.Default == "" {
				continue
			}
		}
		if got := valueOf(t, s, "destinations.billing."+k.Name); got.Source == "default" && got.Text != k.Default {
			t.Errorf("%s: the default is %q, and the table has %q", k.Name, got.Text, k.Default)
		}
	}
}

// TestDestinationsOfRelays checks that the destinations or the sink of a
// relay's entry override the common ones, and that the error of a contradiction
// has the origins of both.
func TestDestinationsOfRelays(t *testing.T) {
	t.Chdir(t.TempDir())
	const two = "destinations: {a: {sink: 'log:'}, b: {sink: 'log:payload'}}\n"
	load := func(text string, src Sources) (*Loaded, error) { return loadText(t, text, src) }
	shape := func(s *Settings) string {
		text := s.Name + " " + s.Sink.URL.Reveal()
		for _, d := range s.Destinations {
			text += " " + d.Name
		}
		return text
	}
	l, err := load(two+"relays:\n  one: {store: {prefix: a_}}\n  two: {store: {prefix: b_}, sink: 'nats:embedded'}\n  three: {store: {prefix: c_}, destinations: {c: {sink: 'log:'}}}\n", Sources{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"one  a b", "two nats:embedded", "three  c"} {
		if got := shape(l.Relays[i]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	l, err = load("sink: nats:embedded\nrelays:\n  one: {store: {prefix: a_}}\n  two: {store: {prefix: b_}, "+two+"  }\n", Sources{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"one nats:embedded", "two  a b"} {
		if got := shape(l.Relays[i]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	flag, variable := Sources{Flags: map[string]string{"sink.url": "log:"}}, Sources{Environ: []string{"WAYBILL_SINK_FILE=s"}}
	ofRelay := Sources{Environ: []string{"WAYBILL_RELAYS_R_SINK=log:"}}
	for _, c := range []struct {
		text string
		src  Sources
		want string
	}{
		{"sink: 'log:'\n" + two, Sources{}, "sink.url (x.yaml:1) and destinations (x.yaml:2) are both set"},
		{"sink: {url-file: s}\n" + two, Sources{}, "sink.url-file (x.yaml:1) and destinations"},
		{two, flag, "sink.url (--sink) and destinations"},
		{two, variable, "sink.url-file (WAYBILL_SINK_FILE) and destinations"},
		{"relays: {r: {" + two[:len(two)-1] + "}}", ofRelay, "sink.url (WAYBILL_RELAYS_R_SINK) and relays.r.destinations (x.yaml:1) are both set"},
		{"relays: {r: {sink: 'log:', " + two[:len(two)-1] + "}}", Sources{}, "sink.url (x.yaml:1) and relays.r.destinations"},
	} {
		if _, err := load(c.text, c.src); err == nil || !strings.Contains(err.Error(), c.want) || hint.Of(err) != "omit one of them" {
			t.Errorf("%s: %v (%s), want %q", c.text, err, hint.Of(err), c.want)
		}
	}
}

func TestErrorsOfDestinations(t *testing.T) {
	t.Chdir(t.TempDir())
	many := "destinations:\n"
	for i := range 32 {
		many += fmt.Sprintf("  d%d: {sink: 'log:'}\n", i)
	}
	for name, tc := range map[string]struct{ file, want, hint string }{
		"none":                  {"destinations: {}", "x.yaml:1: destinations has no entries", "name and a sink"},
		"empty":                 {"destinations:", "x.yaml:1: destinations is empty", "set a value"},
		"too many":              {many, "x.yaml:1: destinations has 32 entries, at most 31 are possible", "several outboxes"},
		"no mapping":            {"destinations: 'log:'", "destinations is not a mapping", "one key and value"},
		"no name":               {"destinations: [{sink: 'log:'}]", "an entry of destinations has no name", "add name:"},
		"a bad name":            {"destinations: {a b: {sink: 'log:'}}", `x.yaml:1: invalid destination name "a b"`, "letters"},
		"one name twice":        {"destinations:\n  a: {sink: 'log:'}\n  a: {sink: 'log:'}", "x.yaml:3: duplicate key a", "omit one"},
		"one name twice, lists": {"destinations:\n- {name: a, sink: 'log:'}\n- {name: a, sink: 'log:'}", "x.yaml:3: duplicate destination destinations.a", "own name"},
		"no sink":               {"destinations:\n  a:\n    rate: 5", "destinations.a.sink (x.yaml:3) is missing", "add sink: URL"},
		"nothing":               {"destinations:\n  a:", "destinations.a.sink (x.yaml:2) is missing", "add sink: URL"},
		"an empty sink":         {"destinations: {a: {sink: ''}}", "destinations.a.sink (x.yaml:1) is missing", "add sink: URL"},
		"an unknown key":        {"destinations: {a: {sink: 'log:', max_atempts: 3}}", "x.yaml:1: unknown setting destinations.a.max_atempts", "did you mean max-attempts?"},
		"a key of the sink":     {"destinations: {a: {sink: {url: 'log:', topik: x}}}", "unknown setting destinations.a.sink.topik", "did you mean sink.topic?"},
		"a key of the relay":    {"destinations: {a: {sink: 'log:', relay: {lease: 3s}}}", "unknown setting destinations.a.relay", "waybill config lists"},
		"a key of the process":  {"destinations: {a: {sink: 'log:', http: {listen: x}}}", "unknown setting destinations.a.http", "waybill config lists"},
		"nested destinations":   {"destinations: {a: {sink: 'log:', destinations: {b: {sink: 'log:'}}}}", "unknown setting destinations.a.destinations", "waybill config"},
		"a key in both forms":   {"destinations: {a: {sink: 'log:', max-attempts: 3, max_attempts: 3}}", "duplicate key destinations.a.max_attempts", "omit one"},
		"not a rate":            {"destinations: {a: {sink: 'log:', rate: fast}}", `destinations.a.rate (x.yaml:1): "fast" is not a rate; write 50/s`, "events per second"},
		"a rate's unit":         {"destinations: {a: {sink: 'log:', rate: 50/day}}", `destinations.a.rate (x.yaml:1): "50/day" is not a rate`, "rate"},
		"a rate of zero":        {"destinations: {a: {sink: 'log:', rate: 0/s}}", "destinations.a.rate (x.yaml:1): 0/s is not greater than 0", "rate"},
		"an endless rate":       {"destinations: {a: {sink: 'log:', rate: inf}}", `"inf" is not a rate`, "rate"},
		"a list of rates":       {"destinations: {a: {sink: 'log:', rate: [1, 2]}}", `"1,2" is not a rate`, "rate"},
		"an empty list":         {"destinations: {a: {sink: 'log:', types: []}}", "destinations.a.types (x.yaml:1): the list is empty", "empty: all"},
		"an empty type":         {"destinations: {a: {sink: 'log:', types: ['']}}", "destinations.a.types (x.yaml:1): a name is empty", "Event types"},
		"a type twice":          {"destinations: {a: {sink: 'log:', types: [X, X]}}", `"X" is in the list twice`, "Event types"},
		"a mapping for a list":  {"destinations: {a: {sink: 'log:', types: {x: y}}}", "destinations.a.types must be one value", "write types: VALUE"},
		"a null value":          {"destinations: {a: {sink: 'log:', rate: }}", "destinations.a.rate is empty", "set a value"},
		"too small":             {"destinations: {a: {sink: 'log:', concurrency: 0}}", "destinations.a.concurrency (x.yaml:1): 0 is less than the minimum 1", "deliveries"},
		"not a choice":          {"destinations: {a: {sink: 'log:', on_dead: explode}}", `destinations.a.on-dead (x.yaml:1): "explode" is not one of continue, block`, "choice"},
		"backoff":               {"destinations: {a: {sink: 'log:', backoff_base: 2m}}", "destinations.a.backoff-base (2m) exceeds destinations.a.backoff-max (1m)", "lower"},
		"continue and block": {
			"relay: {on-dead: block}\ndestinations: {a: {sink: 'log:', on-dead: continue}}", "destinations.a.on-dead is continue, and relay.on-dead is block", "omit relay.on-dead",
		},
		"a secret's missing file": {"destinations: {a: {sink: {url-file: nowhere}}}", "destinations.a: sink.url-file: open nowhere", "x.yaml:1"},
		"a secret twice":          {"destinations: {a: {sink: {url: 'log:', url-file: b}}}", "both set sink.url", "omit one"},
		"retries of an inbox":     {"inbox: {retry: true}\ndestinations: {a: {sink: 'log:'}}", "inbox.retry is on, and there are destinations", "inbox.Inbox.Run"},
		"in a relay": {
			"relays:\n  orders:\n    destinations:\n      partner: {sink: 'log:', rate: x}\n", `relays.orders.destinations.partner.rate (x.yaml:4): "x" is not a rate`, "rate",
		},
		"an unknown key in a relay": {
			"relays:\n  orders:\n    destinations:\n      partner: {sink: 'log:', rat: x}\n", "x.yaml:4: unknown setting relays.orders.destinations.partner.rat", "did you mean rate?",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadText(t, tc.file, Sources{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("the error is %v, want %q", err, tc.want)
			}
			if !strings.Contains(hint.Of(err), tc.hint) {
				t.Errorf("the hint is %q, want %q", hint.Of(err), tc.hint)
			}
		})
	}
}

func TestRates(t *testing.T) {
	for text, want := range map[string]struct {
		rate  float64
		shown string
	}{
		"50/s": {50, "50/s"}, "50": {50, "50/s"}, "0.5": {0.5, "30/m"}, "3000/m": {50, "50/s"}, "100/m": {100.0 / 60, "100/m"}, "1/h": {1.0 / 3600, "1/h"},
		"1e3/s": {1000, "1000/s"}, "0.0001": {0.0001, "0.0001/s"}, "off": {0, "off"},
	} {
		var got float64
		if err := (rateSlot{&got}).set(text); err != nil || got != want.rate || (rateSlot{&got}).show() != want.shown {
			t.Errorf("%s is %v, shown as %s, %v; want %v", text, got, rateSlot{&got}.show(), err, want)
		}
	}
}
