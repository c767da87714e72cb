package relay_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/relay"
)

// TestSetFromEnv: every field with a plain value has a variable, which sets it
// and no other field.
func TestSetFromEnv(t *testing.T) {
	values := map[string]string{
		"string": "x", "bool": "true", "int": "7", "time.Duration": "90s", "[]time.Duration": "1s, 2m", "relay.OnDead": "block",
	}
	wants := map[string]any{
		"string": "x", "bool": true, "int": 7, "time.Duration": 90 * time.Second, "[]time.Duration": []time.Duration{time.Second, 2 * time.Minute}, "relay.OnDead": relay.Block,
	}
	for i, set := range reflect.VisibleFields(reflect.TypeFor[relay.Config]()) {
		kind := set.Type.String()
		if wants[kind] == nil {
			if k := set.Type.Kind(); k != reflect.Func && k != reflect.Struct && k != reflect.Pointer {
				t.Errorf("%s is a %s, which this test does not know", set.Name, kind)
			}
			continue
		}
		var words []string
		for word := range strings.SplitAfterSeq(set.Name, "") {
			if strings.ToUpper(word) == word && len(words) > 0 {
				word = "_" + word
			}
			words = append(words, word)
		}
		name := "X_" + strings.ToUpper(strings.Join(words, ""))
		var got relay.Config
		if err := got.SetFromEnv("X_", func(n string) (string, bool) {
			if n != name {
				return "", false
			}
			return values[kind], true
		}); err != nil {
			t.Fatal(err)
		}
		var want relay.Config
		reflect.ValueOf(&want).Elem().Field(i).Set(reflect.ValueOf(wants[kind]).Convert(set.Type))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s gives %+v, want %+v", name, got, want)
		}
	}
}

// TestSetFromEnvIsChecked: the error names every variable, and nothing changes.
func TestSetFromEnvIsChecked(t *testing.T) {
	environ := map[string]string{
		"WORKERS": "many", "LEASE": "15", "BACKOFF_SERIES": "1s;2s", "ON_DEAD": "stop", "TAKE_OVER": "perhaps", "HOT_QUEUE": "off", "LINGER": "off", "NAME": "",
	}
	lookup := func(name string) (string, bool) { v, ok := environ[name]; return v, ok }
	cfg := relay.Config{Name: "orders"}
	err := cfg.SetFromEnv("", lookup)
	for _, want := range []string{`WORKERS="many"`, `LEASE="15"`, `BACKOFF_SERIES="1s;2s"`, `ON_DEAD="stop"`, `TAKE_OVER="perhaps"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if cfg.HotQueue != 0 || cfg.Name != "orders" {
		t.Errorf("the config has changed: %+v", cfg)
	}
	for _, name := range []string{"WORKERS", "LEASE", "BACKOFF_SERIES", "ON_DEAD", "TAKE_OVER"} {
		delete(environ, name)
	}
	if err := cfg.SetFromEnv("", lookup); err != nil || cfg.HotQueue != -1 || cfg.Linger != -1 || cfg.Name != "orders" {
		t.Errorf("%v: %+v", err, cfg)
	}
}
