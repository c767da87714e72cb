package dashboard

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
)

// chart is a chart of results of deliveries over time.
type chart struct {
	// ID makes the ids of its parts unique. Title and Text describe it for
	// readers who do not see it.
	ID, Title, Text string
	Since, Until    time.Time
	Step            time.Duration
	// Most is the number of results of the highest bar, and Sum that of all.
	Most int64
	Sum  admin.Results
	Bars []throughputBar
}

// throughputBar is a step of a chart.
type throughputBar struct {
	At time.Time
	admin.Results
	// X is where the bar begins.
	X int
	// High, MidHigh and LowHigh are the heights of the dead, the failed and the
	// delivered events, in thousandths of the highest bar, and Top, MidTop and
	// LowTop where these begin.
	High, MidHigh, LowHigh int64
	Top, MidTop, LowTop    int64
}

// chartBar is the width of a bar with its gap.
const chartBar = 10

// Width is the width of the chart.
func (c *chart) Width() int { return len(c.Bars) * chartBar }

// newChart returns the chart of the results of each step.
func newChart(id, title string, t *admin.Throughput, steps map[time.Time]admin.Results) chart {
	c := chart{ID: id, Title: title, Since: t.Since, Until: t.Until, Step: t.Step}
	for at := t.Since; at.Before(t.Until); at = at.Add(t.Step) {
		b := throughputBar{At: at, Results: steps[at], X: len(c.Bars) * chartBar}
		c.Most = max(c.Most, total(b.Results))
		c.Sum.Add(b.Results)
		c.Bars = append(c.Bars, b)
	}
	for i := range c.Bars {
		b, most := &c.Bars[i], max(c.Most, 1)
		b.High, b.MidHigh, b.LowHigh = part(b.Dead, most), part(b.Failed, most), part(b.Delivered, most)
		b.LowTop = 1000 - b.LowHigh
		b.MidTop = b.LowTop - b.MidHigh
		b.Top = b.MidTop - b.High
	}
	c.Text = fmt.Sprintf("From %s to %s: %s delivered, %s failed, %s dead. At most %s in %s.", utc(c.Since), utc(c.Until),
		count(c.Sum.Delivered), count(c.Sum.Failed), count(c.Sum.Dead), one(c.Most, "result"), span(c.Step))
	return c
}

// Any reports whether there are results.
func (c *chart) Any() bool { return c.Most > 0 }

func total(r admin.Results) int64 { return r.Delivered + r.Failed + r.Dead }

// sum adds results to those of a key.
func sum[K comparable](sums map[K]admin.Results, key K, r admin.Results) {
	all := sums[key]
	all.Add(r)
	sums[key] = all
}

// Throughput is the chart of all results of the last hour; nil if the store
// keeps no counts.
func (s *snapshot) Throughput() *chart {
	if s.Results == nil {
		return nil
	}
	steps := make(map[time.Time]admin.Results)
	for _, r := range s.Results.Rows {
		sum(steps, r.At, r.RollupCounts)
	}
	c := newChart("hour", "Deliveries of the last hour", s.Results, steps)
	return &c
}

// periods are the spans of time that the page of the throughput shows.
var periods = []struct {
	name, title string
	span        time.Duration
}{
	{"1h", "1 hour", time.Hour},
	{"3h", "3 hours", 3 * time.Hour},
	{"12h", "12 hours", 12 * time.Hour},
	{"24h", "24 hours", 24 * time.Hour},
	{"7d", "7 days", 7 * 24 * time.Hour},
	{"14d", "14 days", 14 * 24 * time.Hour},
}

// throughputView is the data of the page of the throughput.
type throughputView struct {
	// Off means that the store keeps no counts.
	Off     bool
	Periods []choice
	// Period, Destination and Type are the filter.
	Period, Destination, Type string
	// All is the chart of all results, and Each are those of the destinations
	// if there are several.
	All          chart
	Each         []chart
	Destinations []namedResults
	Types        []namedResults
}

type namedResults struct {
	Name string
	admin.Results
}

func (d *Dashboard) throughput(p *page) (any, error) {
	p.Title = "Throughput"
	v := &throughputView{Period: cmp.Or(p.query("period"), periods[0].name), Destination: p.query("destination"), Type: p.query("type")}
	var length time.Duration
	for _, one := range periods {
		v.Periods = append(v.Periods, choice{one.name, one.title, one.name == v.Period})
		if one.name == v.Period {
			length = one.span
		}
	}
	if length == 0 {
		return nil, refuse(http.StatusBadRequest, "The period must be 1h, 3h, 12h, 24h, 7d or 14d.")
	}
	s, err := d.snapshot(p.ctx)
	if err != nil {
		return nil, err
	}
	t, err := d.cfg.Outbox.Throughput(p.ctx, admin.ThroughputFilter{
		Since: s.Stats.Now.Add(-length), Destination: v.Destination, Type: v.Type, ByType: true,
	})
	if errors.Is(err, admin.ErrNoThroughput) {
		v.Off = true
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	v.fill(&t)
	return v, nil
}

// fill sums up the rows by step, destination and type.
func (v *throughputView) fill(t *admin.Throughput) {
	all := make(map[time.Time]admin.Results)
	each := make(map[string]map[time.Time]admin.Results)
	destinations, types := make(map[string]admin.Results), make(map[string]admin.Results)
	for _, r := range t.Rows {
		if each[r.Destination] == nil {
			each[r.Destination] = make(map[time.Time]admin.Results)
		}
		sum(all, r.At, r.RollupCounts)
		sum(each[r.Destination], r.At, r.RollupCounts)
		sum(destinations, r.Destination, r.RollupCounts)
		sum(types, r.Type, r.RollupCounts)
	}
	v.All = newChart("all", "Deliveries", t, all)
	v.Destinations, v.Types = named(destinations), named(types)
	if len(each) > 1 {
		for i, name := range slices.Sorted(maps.Keys(each)) {
			v.Each = append(v.Each, newChart(fmt.Sprint("to-", i), "Deliveries to "+cmp.Or(name, "no known destination"), t, each[name]))
		}
	}
}

// named returns results by name, the most first.
func named(sums map[string]admin.Results) []namedResults {
	var out []namedResults
	for name, r := range sums {
		out = append(out, namedResults{name, r})
	}
	slices.SortFunc(out, func(a, b namedResults) int {
		return cmp.Or(cmp.Compare(total(b.Results), total(a.Results)), strings.Compare(a.Name, b.Name))
	})
	return out
}
