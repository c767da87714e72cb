package dashboard

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Finding is the result of a check of Config.Doctor.
type Finding struct {
	// Check is the name of the check.
	Check string
	// Status is "ok", "warn", "fail" or "not checked".
	Status string
	// Text describes the finding, and Command is what to type; it may be empty.
	Text, Command string
}

const (
	// doctorTimeout is the time limit of all checks together.
	doctorTimeout = time.Minute
	// doctorFresh is the age up to which findings are shown again: the checks
	// connect to servers.
	doctorFresh = 15 * time.Second
)

// examination is a run of the checks; done is closed at its end.
type examination struct {
	done     chan struct{}
	at       time.Time
	findings []Finding
	err      error
}

// examinations shares a run among the pages that need one.
type examinations struct {
	mu     sync.Mutex
	latest *examination
}

// examine returns the run of the checks that is under way, or that ended
// recently, or a new one. The run does not end with the request.
func (d *Dashboard) examine(ctx context.Context) *examination {
	d.doctors.mu.Lock()
	defer d.doctors.mu.Unlock()
	if e := d.doctors.latest; e != nil {
		select {
		case <-e.done:
			if time.Since(e.at) < doctorFresh {
				return e
			}
		default:
			return e
		}
	}
	e := &examination{done: make(chan struct{})}
	d.doctors.latest = e
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doctorTimeout)
	go func() {
		defer cancel()
		defer close(e.done)
		e.findings, e.err = d.cfg.Doctor(ctx)
		e.at = time.Now()
	}()
	return e
}

// doctorView is the data of the page of findings.
type doctorView struct {
	At       time.Time
	Findings []Finding
	// Troubles is the number of findings that warn or fail.
	Troubles int
}

// severity is the order of the findings on the page.
var severity = []string{"fail", "warn", "not checked", "ok"}

func (d *Dashboard) doctor(p *page) (any, error) {
	p.Title = "Doctor"
	e := d.examine(p.r.Context())
	select {
	case <-e.done:
	case <-p.ctx.Done():
		return nil, refuse(http.StatusServiceUnavailable, "The checks are still running. Open the page again in a few seconds.")
	}
	if e.err != nil {
		return nil, e.err
	}
	v := &doctorView{At: e.at}
	for i, status := range severity {
		for _, f := range e.findings {
			if f.Status == status {
				v.Findings = append(v.Findings, f)
			}
		}
		if i == 1 {
			v.Troubles = len(v.Findings)
		}
	}
	return v, nil
}
