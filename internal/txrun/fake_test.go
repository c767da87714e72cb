package txrun_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// tx is a transaction of the fake; savepoints point to it.
type tx struct{ parent *tx }

func (t *tx) root() *tx {
	for t.parent != nil {
		t = t.parent
	}
	return t
}

// fake is a scripted database that records its calls.
type fake struct {
	hub      *driver.Hub
	beginErr error
	// begun is called for every session that begins.
	begun  func(s *session)
	placed func(ev waybill.Event) driver.AppendResult

	mu       sync.Mutex
	sessions []*session
	appended []waybill.ID
}

func newFake() *fake {
	return &fake{hub: new(driver.Hub), placed: func(ev waybill.Event) driver.AppendResult { return driver.AppendResult{ID: ev.ID, Lane: 7} }}
}

func (f *fake) Local() *driver.Hub { return f.hub }

func (f *fake) Begin(_ context.Context, _ *sql.TxOptions) (driver.Session[*tx], error) {
	if f.beginErr != nil {
		return nil, f.beginErr
	}
	s := &session{db: f, tx: &tx{}}
	f.mu.Lock()
	f.sessions = append(f.sessions, s)
	f.mu.Unlock()
	if f.begun != nil {
		f.begun(s)
	}
	if s.deferring {
		return &deferrer{session: s}, nil
	}
	return s, nil
}

func (f *fake) Append(_ context.Context, _ *tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]driver.AppendResult, len(evs))
	for i, ev := range evs {
		f.appended = append(f.appended, ev.ID)
		out[i] = f.placed(ev)
	}
	return out, nil
}

type session struct {
	db        *fake
	tx        *tx
	deferring bool

	commitErr, rollbackErr error
	ending                 driver.CommitInfo

	commits, rollbacks int
	asked              time.Time // by the last commit
	accepted           []waybill.ID
	check              bool
	ctx                context.Context // of the commit or rollback
	flush              []func()
}

func (s *session) Tx() *tx         { return s.tx }
func (s *session) Owns(t *tx) bool { return t.root() == s.tx }

func (s *session) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	s.commits++
	s.asked = time.Now()
	s.ctx, s.accepted, s.check = ctx, accepted, check
	if s.commitErr != nil {
		return driver.CommitInfo{}, s.commitErr
	}
	for _, fn := range s.flush {
		fn()
	}
	return s.ending, nil
}

func (s *session) Rollback(ctx context.Context) error {
	s.rollbacks++
	s.ctx = ctx
	return s.rollbackErr
}

// deferrer defers events to the commit.
type deferrer struct{ *session }

func (d *deferrer) Defer(_ context.Context, _ *tx, evs []waybill.Event, accepted func([]driver.AppendResult)) error {
	d.flush = append(d.flush, func() {
		out := make([]driver.AppendResult, len(evs))
		for i, ev := range evs {
			out[i] = d.db.placed(ev)
		}
		accepted(out)
	})
	return nil
}

// teller is a writer that records its notifications.
type teller struct {
	wants                           bool
	accepted, committed, rolledBack [][]waybill.ID
}

func (t *teller) WantsCommitted() bool { return t.wants }

func (t *teller) Accepted(_ context.Context, evs []waybill.Event) {
	t.accepted = append(t.accepted, ids(evs))
}

func (t *teller) Committed(_ context.Context, evs []waybill.Event) {
	t.committed = append(t.committed, ids(evs))
}

func (t *teller) RolledBack(_ context.Context, evs []waybill.Event) {
	t.rolledBack = append(t.rolledBack, ids(evs))
}

func ids(evs []waybill.Event) []waybill.ID {
	var out []waybill.ID
	for _, ev := range evs {
		out = append(out, ev.ID)
	}
	return out
}

func events(n int) []waybill.Event {
	evs := make([]waybill.Event, n)
	for i := range evs {
		evs[i] = eventfill.Defaults(waybill.NewEvent("t", i))
	}
	return evs
}
