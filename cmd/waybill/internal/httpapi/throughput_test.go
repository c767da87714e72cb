package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
)

// TestThroughput: the API has what a relay has counted, until it stopped.
func TestThroughput(t *testing.T) {
	b := newEnv(t)
	b.fill()
	read := func(query string) view.Throughput {
		t.Helper()
		code, text := b.call("GET", "/api/throughput"+query, "", withToken)
		var v view.Throughput
		if err := json.Unmarshal([]byte(text), &v); code != http.StatusOK || err != nil {
			t.Fatalf("%s: %d %s", query, code, text)
		}
		return v
	}
	sum := func(v view.Throughput) (all view.Results) {
		for _, r := range v.Steps {
			all.Add(r.Results)
		}
		return all
	}
	v := read("")
	if got := sum(v); v.StepSeconds != 60 || got.Dead != 2 || got.Failed < 1 || v.Until.Before(v.Now) {
		t.Errorf("the results are %+v", v)
	}
	since := time.Now().Add(-10 * time.Hour).UTC().Format(time.RFC3339)
	if v := read("?by_type=1&step=2h&since=" + since); v.StepSeconds != 7200 || sum(v).Dead != 2 || v.Steps[0].Type == "" || v.Steps[0].OtherTypes {
		t.Errorf("the results by type are %+v", v)
	}
	if v := read("?type=Nothing"); len(v.Steps) != 0 {
		t.Errorf("the results of another type are %+v", v)
	}
	for _, query := range []string{"?since=yesterday", "?until=x", "?step=1s", "?step=x", "?since=2000-01-01T00:00:00Z", "?until=2000-01-01T00:00:00Z&since=" + since} {
		if code, text := b.call("GET", "/api/throughput"+query, "", withToken); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
	if code, text := b.call("GET", "/api/stats", "", withToken); code != http.StatusOK || strings.Contains(text, `"throughput": null`) {
		t.Errorf("/api/stats: %d %s", code, text)
	}
}
