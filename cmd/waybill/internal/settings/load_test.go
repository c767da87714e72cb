package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// samples returns three values of a setting that differ from its default and
// from each other, as they are shown.
func samples(k Key) [3]string {
	switch s := k.slot(&Settings{}).(type) {
	case switchSlot:
		other := "false"
		if k.Default == "false" {
			other = "true"
		}
		return [3]string{other, k.Default, other}
	case choiceSlot:
		if len(s.among) == 2 {
			return [3]string{s.among[1], s.among[0], s.among[1]}
		}
		return [3]string{s.among[0], s.among[2], s.among[3]}
	case numberSlot:
		return [3]string{"21", "22", "23"}
	case durationSlot:
		if k.Name == "relay.lease" { // at least three heartbeats
			return [3]string{"21s", "22s", "23s"}
		}
		if k.Name == "relay.backoff-max" {
			return [3]string{"11s", "12s", "13s"}
		}
		return [3]string{"21ms", "22ms", "23ms"}
	case seriesSlot:
		return [3]string{"1s", "1s,2s", "1s,2s,3m"}
	case secretSlot:
		return [3]string{"log:", "sqlite:two.db", "sqlite:three.db"} // no secrets
	default:
		return [3]string{"one", "two", "three"}
	}
}

// companions are settings that other settings require.
func companions(k Key) map[string]string {
	switch k.Name {
	case "http.cert":
		return map[string]string{"http.key": "x"}
	case "http.key":
		return map[string]string{"http.cert": "x"}
	case "cdc.enabled":
		return map[string]string{"relay.enabled": "false"}
	case "inbox.retention":
		return map[string]string{"inbox.redelivery-window": "1ms"}
	}
	return nil
}

func valueOf(t *testing.T, s *Settings, name string) Value {
	t.Helper()
	for _, v := range s.Values() {
		if v.Key.Name == name {
			return v
		}
	}
	t.Fatalf("unknown setting %s", name)
	return Value{}
}

// writeYAML writes settings, by their dotted names, to a file.
func writeYAML(t *testing.T, common, ofRelay map[string]string) string {
	t.Helper()
	var b strings.Builder
	emit := func(indent string, m map[string]string) {
		for name, value := range m {
			group, leaf, grouped := strings.Cut(name, ".")
			if grouped {
				fmt.Fprintf(&b, "%s%s: {%s: %q}\n", indent, group, leaf, value)
			} else {
				fmt.Fprintf(&b, "%s%s: %q\n", indent, name, value)
			}
		}
	}
	emit("", common)
	if ofRelay != nil {
		b.WriteString("relays:\n  orders-eu:\n    store: {prefix: o_}\n")
		emit("    ", ofRelay)
	}
	path := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustLoad(t *testing.T, src Sources) *Settings {
	t.Helper()
	l, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	return l.Relays[0]
}

// TestFlagOverEnvironmentOverFileOverDefault checks every setting.
func TestFlagOverEnvironmentOverFileOverDefault(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, k := range Table() {
		t.Run(k.Name, func(t *testing.T) {
			v := samples(k)
			extra := companions(k)
			flags := map[string]string{}
			for name, value := range extra {
				flags[name] = value
			}
			check := func(src Sources, text, source string) {
				t.Helper()
				got := valueOf(t, mustLoad(t, src), k.Name)
				if got.Text != text || !strings.Contains(got.Source, source) {
					t.Errorf("got %q from %s, want %q from %s", got.Text, got.Source, text, source)
				}
			}
			check(Sources{}, k.Default, "default")
			file := writeYAML(t, map[string]string{k.Name: v[0]}, nil)
			check(Sources{Config: file, Flags: flags}, v[0], "w.yaml:1")
			env := []string{k.Variable() + "=" + v[1]}
			check(Sources{Config: file, Environ: env, Flags: flags}, v[1], k.Variable())
			given := map[string]string{k.Name: v[2]}
			for name, value := range extra {
				given[name] = value
			}
			check(Sources{Config: file, Environ: env, Flags: given}, v[2], "--"+k.Flag())
		})
	}
}

// TestARelaysOwnValueWinsWithinItsSource checks that a relay's variable
// overrides the common one, and a relay's key the common one, but any variable
// overrides any file.
func TestARelaysOwnValueWinsWithinItsSource(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, k := range Table() {
		if k.Daemon || k.Name == "store.prefix" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			v := samples(k)
			flags := companions(k)
			check := func(src Sources, text, source string) {
				t.Helper()
				src.Flags = flags
				got := valueOf(t, mustLoad(t, src), k.Name)
				if got.Text != text || !strings.Contains(got.Source, source) {
					t.Errorf("got %q from %s, want %q from %s", got.Text, got.Source, text, source)
				}
			}
			if k.Name == "store.url" || strings.HasPrefix(k.Name, "store.") {
				return // the file below has its own store; the other groups cover the rule
			}
			file := writeYAML(t, map[string]string{k.Name: v[0]}, map[string]string{k.Name: v[1]})
			own := "WAYBILL_RELAYS_ORDERS_EU_" + strings.TrimPrefix(k.Variable(), "WAYBILL_")
			check(Sources{Config: file}, v[1], "w.yaml:")
			check(Sources{Config: file, Environ: []string{k.Variable() + "=" + v[2]}}, v[2], k.Variable())
			check(Sources{Config: file, Environ: []string{k.Variable() + "=" + v[2], own + "=" + v[0]}}, v[0], own)
		})
	}
}

func TestErrorsHaveHints(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, tc := range map[string]struct{ file, want, hint string }{
		"a misspelled key":       {"relay: {worker: 3}", "x.yaml:1: unknown setting relay.worker", "did you mean relay.workers?"},
		"a misspelled group":     {"realy: {workers: 3}", "unknown setting realy", "waybill config lists"},
		"a key without group":    {"workers: 3", "unknown setting workers", "did you mean relay.workers?"},
		"a key twice":            {"relay:\n  lease: 9s\n  lease: 8s", "x.yaml:3: duplicate key lease", "omit one"},
		"not a number":           {"relay: {workers: many}", `relay.workers (x.yaml:1): "many" is not a whole number`, "deliveries"},
		"too small":              {"relay: {workers: 0}", "0 is less than the minimum 1", "deliveries"},
		"not a duration":         {"relay: {lease: 15}", `relay.lease (x.yaml:1): "15" is not a duration`, "duration"},
		"a negative duration":    {"relay: {lease: -15s}", "-15s is negative", "duration"},
		"not a choice":           {"relay: {on-dead: explode}", "not one of continue, block", "choice"},
		"not a switch":           {"relay: {enabled: maybe}", "not true or false", "switch"},
		"no value":               {"relay: {lease: }", "relay.lease is empty", "set a value"},
		"a mapping":              {"relay: {lease: {a: b}}", "relay.lease must be one value", "write lease: VALUE"},
		"a list for a group":     {"relay: [a]", "unknown setting relay", "waybill config"},
		"not YAML":               {"relay: {", "x.yaml: line 1:", "YAML"},
		"two documents":          {"enabled: true\n---\nenabled: false", "second document", "one document"},
		"a process setting":      {"relays: {a: {log: {level: info}}}", "relays.a.log.level is a setting of the whole process", "outside of relays"},
		"a relay without name":   {"relays: [{sink: 'log:'}]", "an entry of relays has no name", "add name:"},
		"a bad relay name":       {"relays: {'a b': {sink: 'log:'}}", `invalid relay name "a b"`, "letters"},
		"two relays, same table": {"relays: {a: {sink: 'log:'}, b: {sink: 'log:'}}", "relays a and b use the same tables", "store.prefix"},
		"two names, one variable": {
			"relays: {a-b: {store: {prefix: a_}}, A_B: {store: {prefix: b_}}}", "relays a-b and A_B have the same variables", "names that differ",
		},
		"cdc and relay":           {"cdc: {enabled: true}", "cdc.enabled and relay.enabled are both true", "set relay.enabled or cdc.enabled to false"},
		"heartbeat and lease":     {"relay: {lease: 6s}", "relay.heartbeat (5s) exceeds a third of relay.lease (6s)", "lower relay.heartbeat"},
		"retention alone":         {"inbox: {retention: 7d}", "inbox.retention requires inbox.redelivery-window", "the time during which"},
		"retention too short":     {"inbox: {retention: 1d, redelivery-window: 2d}", "shorter than inbox.redelivery-window", "applied again"},
		"a certificate alone":     {"http: {cert: x}", "http.cert and http.key must be set together", "both or neither"},
		"a job's unknown key":     {"jobs: {a: {evry: 5m}}", "unknown key evry of a job", "did you mean every?"},
		"a job's bad value":       {"jobs: {a: {every: often}}", "jobs.a.every:", "docs/cli.md"},
		"a job without a relay":   {"relays: {a: {store: {prefix: a_}}, b: {store: {prefix: b_}}}\njobs: {j: {kind: stuck-leases}}", "job j: 2 relays are configured", "add relay: NAME"},
		"a job of an odd relay":   {"jobs: {j: {relay: x}}", "job j: relay x does not exist", "add relay: NAME"},
		"a secret's missing file": {"store: {url-file: nowhere}", "store.url-file: open nowhere", "x.yaml:1"},
		"a secret twice":          {"store: {url: 'sqlite:a', url-file: b}", "both set store.url", "omit one"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile("x.yaml", []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(Sources{Config: "x.yaml"})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("the error is %v, want %q", err, tc.want)
			}
			if !strings.Contains(hint.Of(err), tc.hint) {
				t.Errorf("the hint is %q, want %q", hint.Of(err), tc.hint)
			}
		})
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := Load(Sources{Environ: []string{"WAYBILL_RELAY_WORKERS=x", "WAYBILL_RELAY_LEASE=y"}, Flags: map[string]string{"log.level": "z"}})
	for _, part := range []string{"relay.workers (WAYBILL_RELAY_WORKERS)", "relay.lease (WAYBILL_RELAY_LEASE)", "log.level (--log-level)"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v lacks %s", err, part)
		}
	}
}

func TestDefaultFileIsRead(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile(DefaultFile, []byte("store: sqlite:other.db\nrelay: {backoff-series: [1s, 5s, 30s]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustLoad(t, Sources{})
	if s.Store.URL.Reveal() != "sqlite:other.db" || len(s.Relay.BackoffSeries) != 3 || s.Relay.BackoffSeries[2] != 30*time.Second {
		t.Errorf("%+v", s)
	}
	if got := valueOf(t, s, "store.url").Source; got != DefaultFile+":1" {
		t.Errorf("the source is %s", got)
	}
}

func TestRelaysMayBeAListOrAMap(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, text := range []string{
		"sink: 'log:'\nrelays:\n  - name: orders\n    store: {prefix: orders_}\n  - name: bills\n    store: {prefix: bills_}\n    relay: {workers: 9}\n",
		"sink: 'log:'\nrelays:\n  orders:\n    store: {prefix: orders_}\n  bills:\n    store: {prefix: bills_}\n    relay: {workers: 9}\n",
	} {
		if err := os.WriteFile(DefaultFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Load(Sources{})
		if err != nil {
			t.Fatal(err)
		}
		bills, err := l.Pick("bills")
		if err != nil || bills.Relay.Workers != 9 || bills.Store.Prefix != "bills_" || bills.Sink.URL.Reveal() != "log:" || bills.Relay.Name != "bills" {
			t.Errorf("%+v, %v", bills, err)
		}
		if orders, _ := l.Pick("orders"); orders.Relay.Workers != 4 {
			t.Errorf("orders has %d workers", orders.Relay.Workers)
		}
		if _, err := l.Pick(""); err == nil || !strings.Contains(hint.Of(err), "--relay orders or --relay bills") {
			t.Errorf("no name: %v, %q", err, hint.Of(err))
		}
		if _, err := l.Pick("unknown"); err == nil || !strings.Contains(hint.Of(err), "orders, bills") {
			t.Errorf("a wrong name: %v, %q", err, hint.Of(err))
		}
	}
}

func TestMisspelledVariablesAreWarnedAbout(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := Load(Sources{Environ: []string{"WAYBILL_RELAY_WORKER=3", "WAYBILL_TEST_POSTGRES=x", "WAYBILL_STORE_PREFIX=", "PATH=y", "WAYBILL_CONFIG="}})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Warnings) != 1 || !strings.Contains(l.Warnings[0], "WAYBILL_RELAY_WORKER (did you mean WAYBILL_RELAY_WORKERS?)") {
		t.Errorf("warnings: %q", l.Warnings)
	}
}

func TestSecretsMayBeInFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"good": "postgres://u:p@h/d\n", "empty": "\n", "two": "a\nb\n", "large": strings.Repeat("x", secretSize+1)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := mustLoad(t, Sources{Environ: []string{"WAYBILL_STORE_FILE=good", "WAYBILL_HTTP_TOKEN_FILE=good"}})
	if s.Store.URL.Reveal() != "postgres://u:p@h/d" || valueOf(t, s, "store.url").Source != "WAYBILL_STORE_FILE: good" {
		t.Errorf("%q from %s", s.Store.URL.Reveal(), valueOf(t, s, "store.url").Source)
	}
	// A flag overrides a variable, also if one of them names a file.
	s = mustLoad(t, Sources{Environ: []string{"WAYBILL_STORE=sqlite:env.db"}, Flags: map[string]string{"store.url-file": "good"}})
	if s.Store.URL.Reveal() != "postgres://u:p@h/d" {
		t.Errorf("%q", s.Store.URL.Reveal())
	}
	for _, bad := range []string{"empty", "two", "large", "missing"} {
		if _, err := Load(Sources{Flags: map[string]string{"store.url-file": bad}}); err == nil {
			t.Errorf("the file %s was accepted", bad)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "1d12h": 36 * time.Hour, "200ms": 200 * time.Millisecond, "1m": time.Minute, "0": 0, "0s": 0, "1h30m": 90 * time.Minute, "-5s": -5 * time.Second,
	} {
		got, err := ParseDuration(text)
		if err != nil || got != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
		if again, err := ParseDuration(FormatDuration(got)); err != nil || again != got {
			t.Errorf("%s is shown as %s, which is %v, %v", text, FormatDuration(got), again, err)
		}
	}
	for _, text := range []string{"", "5", "d", "-1d", "1d-5s", "7 d", "999999999d", "1dd", "5 s"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q is %v", text, d)
		}
	}
}
