package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// away is a database whose job queries fail until a given time.
type away struct {
	driver.Complete[*memstore.Tx]
	until time.Time
}

func (a away) FindJob(ctx context.Context, name string) (store.JobRecord, bool, error) {
	if time.Now().Before(a.until) {
		return store.JobRecord{}, false, errors.New("the database is away")
	}
	return a.Complete.FindJob(ctx, name)
}

// TestAnOutageOfTheDatabaseIsOneLine: an outage is one line for all jobs
// together, regardless of the number of queries per job. A job that fails at
// every run is one line, too.
func TestAnOutageOfTheDatabaseIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		db := away{testroles.Complete(open(t)), time.Now().Add(50 * time.Second)}
		runs, mended := 0, time.Now().Add(100*time.Second)
		jobs := []reconcile.Job{{Name: "good", Find: yields()}, {Name: "bad", Schedule: reconcile.Every(time.Second), Repair: func(context.Context, reconcile.Window) (int, error) {
			if runs++; time.Now().Before(mended) {
				return 0, errors.New("no such table")
			}
			return 0, nil
		}}}
		r, err := reconcile.New(testroles.Of[*memstore.Tx](db), jobs, reconcile.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		want := []string{
			"the reconciler's database fails", "the reconciler's database recovered", "a reconciliation job fails", "a reconciliation job recovered",
		}
		ok := len(lines) == len(want) && runs > 10
		for _, text := range want { // the jobs run concurrently: any order
			ok = ok && strings.Count(log.String(), text) == 1
		}
		if !ok {
			t.Errorf("%d runs of the bad job:\n%s", runs, log.String())
		}
	})
}
