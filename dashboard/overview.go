package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// snapshot is what the overview shows.
type snapshot struct {
	At           time.Time
	Stats        admin.Stats
	Destinations []admin.Destination
	Groups       []store.GroupStats
	Keys         *store.KeyStats
	Problems     []trouble
	// Results are those of the last hour; nil if the store keeps no counts.
	Results *admin.Throughput
}

// shared is the latest snapshot: any number of open overviews read the tables
// once.
type shared struct {
	mu     sync.Mutex
	latest *snapshot
}

// mostDead is the number up to which pages count dead letters, those of the
// outbox and of each destination, and of each cause. A page about a million
// reads no more.
const mostDead = 20_000

// fresh is the age up to which a snapshot is shown.
const fresh = time.Second

// snapshot returns the state of the tables, which may be one second old.
func (d *Dashboard) snapshot(ctx context.Context) (*snapshot, error) {
	d.shared.mu.Lock() // others wait for the same query
	defer d.shared.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s := d.shared.latest; s != nil && time.Since(s.At) < fresh {
		return s, nil
	}
	s, err := d.look(ctx)
	if err != nil {
		return nil, err
	}
	d.shared.latest = s
	return s, nil
}

// forget makes the next overview read the tables.
func (d *Dashboard) forget() {
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	d.shared.latest = nil
}

// look reads the tables.
func (d *Dashboard) look(ctx context.Context) (*snapshot, error) {
	s := &snapshot{At: time.Now()}
	var err error
	if s.Stats, err = d.cfg.Outbox.StatsUpTo(ctx, mostDead); err != nil {
		return nil, err
	}
	if d.cfg.Destinations != nil {
		if s.Destinations, err = d.cfg.Destinations.ListUpTo(ctx, mostDead); err != nil {
			return nil, err
		}
	}
	if d.cfg.Inbox != nil {
		if s.Groups, err = d.cfg.Inbox.Stats(ctx, false); err != nil {
			return nil, err
		}
	}
	if d.cfg.Keys != nil {
		k, err := d.cfg.Keys.Stats(ctx)
		if err != nil {
			return nil, err
		}
		s.Keys = &k
	}
	t, err := d.cfg.Outbox.Throughput(ctx, admin.ThroughputFilter{Step: time.Minute})
	switch {
	case err == nil:
		s.Results = &t
	case !errors.Is(err, admin.ErrNoThroughput):
		return nil, err
	}
	s.Problems, err = d.problems(ctx, s)
	return s, err
}

// Owned is the number of lanes with a live owner.
func (s *snapshot) Owned() int {
	n := 0
	for _, l := range s.Stats.Lanes {
		if l.Live {
			n++
		}
	}
	return n
}

// Waiting is the number of events of the outbox that are not delivered and not
// dead.
func (s *snapshot) Waiting() int64 { return s.Stats.Ready + s.Stats.Failed + s.Stats.Scheduled }

// Dead is the number of dead letters, of the outbox and of all destinations.
func (s *snapshot) Dead() int64 {
	n := s.Stats.Dead
	for _, to := range s.Destinations {
		n += to.Dead
	}
	return n
}

// bar is a row of the chart of backlogs.
type bar struct {
	admin.Destination
	// Ready, Failed and Dead are widths in thousandths of the largest backlog.
	Ready, Failed, Dead int64
	// FromFailed and FromDead are where the parts begin.
	FromFailed, FromDead int64
}

// Bars returns the chart of backlogs.
func (s *snapshot) Bars() []bar {
	most := int64(1)
	for _, to := range s.Destinations {
		most = max(most, to.Rows())
	}
	out := make([]bar, 0, len(s.Destinations))
	for _, to := range s.Destinations {
		b := bar{Destination: to, Ready: part(to.Ready, most), Failed: part(to.Failed+to.Scheduled, most), Dead: part(to.Dead, most)}
		b.FromFailed = b.Ready
		b.FromDead = b.FromFailed + b.Failed
		out = append(out, b)
	}
	return out
}

// part returns a share in thousandths; a number that is not 0 is visible.
func part(n, of int64) int64 {
	if n == 0 {
		return 0
	}
	return max(n*1000/of, 4)
}

func (d *Dashboard) overview(p *page) (any, error) {
	p.Title = "Overview"
	return d.snapshot(p.ctx)
}

// relaysView is the data of the page about relays and lanes.
type relaysView struct {
	*snapshot
	Nodes []nodeRow
	// Troubles are what the nodes report about destinations.
	Troubles []string
	Lanes    []store.LaneState
}

type nodeRow struct {
	ID    waybill.ID
	Relay string
	Lanes int
	// Process means that the node reports its process.
	Process       bool
	Host, Version string
	PID           int
	// Started is the time at which the node was started: that of its id, if it
	// does not report it.
	Started time.Time
	// LastMinute are the results of the last minute; nil if it does not report
	// them.
	LastMinute *admin.Results
}

func (d *Dashboard) relays(p *page) (any, error) {
	p.Title = "Relays and lanes"
	s, err := d.snapshot(p.ctx)
	if err != nil {
		return nil, err
	}
	owned := make(map[waybill.ID]int)
	for _, l := range s.Stats.Lanes {
		if l.Live {
			owned[l.Owner]++
		}
	}
	v := relaysView{snapshot: s, Lanes: s.Stats.Lanes}
	for _, n := range s.Stats.Nodes {
		row := nodeRow{ID: n.ID, Relay: n.Relay, Lanes: owned[n.ID], Started: n.ID.Time()}
		if r := admin.ReportOf(n); r != nil {
			row.Process, row.Host, row.PID, row.Version, row.Started = true, r.Host, r.PID, r.Version, r.StartedAt
			row.LastMinute = r.LastMinute
		}
		v.Nodes = append(v.Nodes, row)
	}
	v.Troubles = sentences(admin.Troubles(s.Stats.Stats))
	return v, nil
}
