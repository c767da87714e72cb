package inbox

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	got := Options{}.withDefaults()
	want := Options{Lease: 30 * time.Second, MaxAttempts: 20, BackoffBase: time.Second, BackoffMax: 5 * time.Minute}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the defaults are %+v, want %+v", got, want)
	}
	if n := (Options{MaxAttempts: 1}).withDefaults().attempts(); n != 1 {
		t.Errorf("without retries there are %d attempts", n)
	}
	if err := (Options{}).Validate(); err != nil {
		t.Errorf("the zero options: %v", err)
	}
	for word, o := range map[string]Options{
		"requires Options.WaitMax":          {WaitIfInProgress: true},
		"requires Options.WaitIfInProgress": {WaitMax: time.Second},
		"Lease":                             {Lease: -1},
		"above":                             {BackoffBase: time.Hour},
		"Options.Key":                       {Key: 7},
		"BackoffMax":                        {BackoffMax: -time.Second},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%+v: %v, want something about %q", o, err, word)
		}
	}
	if d := got.after(3); d != 4*time.Second {
		t.Errorf("the delay after three failures is %v", d)
	}
}
