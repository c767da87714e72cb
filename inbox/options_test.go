package inbox

import (
	"reflect"
	"slices"
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
	var asked []int
	own := Options{Backoff: func(n int) time.Duration { asked = append(asked, n); return time.Duration(n-2) * time.Minute }, BackoffBase: time.Hour, BackoffMax: time.Hour}
	for n, want := range map[int]time.Duration{5: 3 * time.Minute, 1: 0, 0: 0} {
		if d := own.withDefaults().after(n); d != want {
			t.Errorf("Backoff: the delay after %d failures is %v, want %v", n, d, want)
		}
	}
	if slices.Sort(asked); !slices.Equal(asked, []int{1, 1, 5}) {
		t.Errorf("Backoff was asked for %v", asked)
	}
	if d := got.after(3); d != 4*time.Second {
		t.Errorf("the delay after three failures is %v", d)
	}
}
