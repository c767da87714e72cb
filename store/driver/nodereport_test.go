package driver_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// TestNodeReport: a report comes back with its times by the clock of the
// database, whatever the clock of the node is.
func TestNodeReport(t *testing.T) {
	const lease = 15 * time.Second
	expires := time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC)
	reportAt := func(at time.Time) *driver.NodeReport {
		return &driver.NodeReport{
			Host: "host-1.example", PID: 4711, Version: "v1.2.3-\u00e4\u732b", StartedAt: at.Add(-time.Hour), At: at,
			Troubles: []driver.Trouble{
				{Destination: "shipping", Part: "orders", State: driver.TroubleDown, Since: at.Add(-11 * time.Minute), Error: `NO_ROUTE "x" <b>`, NextProbe: at.Add(8 * time.Second)},
				{Destination: "billing", State: driver.TroubleLimited, Since: at.Add(-time.Minute), Rate: 12.5},
				{State: driver.TroubleDown, Since: at, NextProbe: at},
			},
			Omitted: 3,
		}
	}
	want := reportAt(expires.Add(-lease))
	for _, wrong := range []time.Duration{-72 * time.Hour, 0, 72 * time.Hour} {
		text := driver.EncodeNodeReport(reportAt(time.Now().Add(wrong)), lease)
		if got := driver.DecodeNodeReport(text, expires); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nis %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"", "{", "[]", `{"pid":"x"}`} {
		if got := driver.DecodeNodeReport(text, expires); got != nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
	if text := driver.EncodeNodeReport(nil, lease); text != "" {
		t.Errorf("no report is %q", text)
	}
}

// TestNodeReportHasALimit: a report with more than there is room for keeps the
// first troubles, and counts the others.
func TestNodeReportHasALimit(t *testing.T) {
	at := time.Now()
	r := &driver.NodeReport{Host: strings.Repeat("h", 1000), Version: strings.Repeat("\u732b", 1000), At: at, StartedAt: at, Omitted: 5}
	const all = 3000
	for i := range all {
		r.Troubles = append(r.Troubles, driver.Trouble{Part: fmt.Sprint(i), State: driver.TroubleDown, Since: at, Error: strings.Repeat("\x01\x00\u732b", 1000), NextProbe: at})
	}
	text := driver.EncodeNodeReport(r, time.Second)
	got := driver.DecodeNodeReport(text, at)
	if len(text) > driver.MaxNodeReport || len(text) < driver.MaxNodeReport/2 || got == nil {
		t.Fatalf("%d bytes: %.300s", len(text), text)
	}
	if n := len(got.Troubles); n == 0 || n+got.Omitted != all+5 || got.Host != r.Host[:255] || len(got.Version) != 255 {
		t.Errorf("of %d troubles the report has %d, and counts %d others: %.300v", all+5, n, got.Omitted, got)
	}
	for i, one := range got.Troubles {
		if one.Part != fmt.Sprint(i) || len(one.Error) < 500 || strings.ContainsRune(one.Error, 0) {
			t.Errorf("trouble %d is %+v", i, one)
		}
	}
}
