package inbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields.
func TestConfigErrors(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]inbox.Config{
		"inbox: Config.Retention: -1ns is negative\n" +
			"Config.RedeliveryWindow: -2ns is negative\n" +
			"Config.PurgeInterval: -3ns is negative": {Retention: -1, RedeliveryWindow: -2, RetryInterval: -1, PurgeInterval: -3},
		"inbox: Config.Retention: requires Config.RedeliveryWindow":                         {Retention: 1},
		"inbox: Config.Retention: 1ns is shorter than Config.RedeliveryWindow (2ns)":        {Retention: 1, RedeliveryWindow: 2},
		"inbox: Config.RedeliveryWindow: -2ns is negative":                                  {Retention: 1, RedeliveryWindow: -2},
		"inbox: Config.Retention: -1ns is negative\nConfig.PurgeInterval: -1ns is negative": {Retention: -1, PurgeInterval: -1},
	} {
		if _, err := inbox.New(db, cfg); err == nil || err.Error() != want {
			t.Errorf("%+v:\n%v\nwant\n%s", cfg, err, want)
		}
	}
	for _, cfg := range []inbox.Config{{}, {RedeliveryWindow: 1}, {Retention: 2, RedeliveryWindow: 2}, {RetryInterval: -1}} {
		if _, err := inbox.New(db, cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestOptionsErrors: the errors of Validate and of Group list every invalid
// option, in the order of the fields; MustGroup panics with the same error.
func TestOptionsErrors(t *testing.T) {
	for want, o := range map[string]inbox.Options{
		"Options.Lease: -1ns is negative\n" +
			"Options.WaitMax: -2ns is negative\n" +
			"Options.MaxAttempts: -3 is negative\n" +
			"Options.BackoffBase: -4ns is negative\n" +
			"Options.BackoffMax: -5ns is negative\n" +
			"Options.Key: unknown value 7": {Lease: -1, WaitMax: -2, MaxAttempts: -3, BackoffBase: -4, BackoffMax: -5, Key: 7},
		"Options.WaitIfInProgress: requires Options.WaitMax":        {WaitIfInProgress: true},
		"Options.WaitMax: requires Options.WaitIfInProgress":        {WaitMax: 1},
		"Options.BackoffBase: 1s is above Options.BackoffMax (1ms)": {BackoffMax: time.Millisecond},
	} {
		if err := o.Validate(); err == nil || err.Error() != "inbox: "+want {
			t.Errorf("Validate of %+v:\n%v\nwant\ninbox: %s", o, err, want)
		}
		_, in := newInbox(t, inbox.Config{})
		want = `inbox: group "G": ` + want
		if g, err := in.Group("G", o); g != nil || err == nil || err.Error() != want {
			t.Errorf("Group with %+v:\n%v\nwant\n%s", o, err, want)
		}
		wantPanic(t, in, "G", o, want)
		in.MustGroup("G", inbox.Options{}) // the name is still free
	}
}

// wantPanic reports whether MustGroup panics with an error.
func wantPanic(t *testing.T, in *inbox.Inbox[*memstore.Tx], name string, o inbox.Options, want string) {
	t.Helper()
	defer func() {
		t.Helper()
		if err, _ := recover().(error); err == nil || err.Error() != want {
			t.Errorf("MustGroup panics with\n%v\nwant\n%s", err, want)
		}
	}()
	in.MustGroup(name, o)
}

// records counts the calls of Run.
type records struct {
	driver.Inbox[*memstore.Tx]
	due, purged []time.Time
}

func (r *records) DueRecords(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	r.due = append(r.due, time.Now())
	return r.Inbox.DueRecords(ctx, group, limit)
}

func (r *records) PurgeRecords(ctx context.Context, group string, age time.Duration, limit int) (int, error) {
	r.purged = append(r.purged, time.Now())
	return r.Inbox.PurgeRecords(ctx, group, age, limit)
}

// TestRunWithoutStoredEvents: with the default RetryInterval, Run of groups
// that store no events purges and does not retry; with one that stores its
// events, Run retries every second; a negative RetryInterval turns retries off;
// a RetryInterval that cannot have an effect is an error.
func TestRunWithoutStoredEvents(t *testing.T) {
	for name, c := range map[string]struct {
		retry  time.Duration
		stores bool
		due    int
		err    string
	}{
		"default, no group stores":  {},
		"default, a group stores":   {stores: true, due: 20 * 60},
		"off, a group stores":       {retry: -1, stores: true},
		"off, no group stores":      {retry: -1},
		"interval, a group stores":  {retry: time.Minute, stores: true, due: 20},
		"interval, no group stores": {retry: time.Minute, err: "inbox: Config.RetryInterval: no group has Options.StoreEvent, so no event can be retried"},
		"shortest, no group stores": {retry: 1, err: "inbox: Config.RetryInterval: no group has Options.StoreEvent, so no event can be retried"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, err := memstore.New(memstore.Config{})
				if err != nil {
					t.Fatal(err)
				}
				r := &records{Inbox: db.Driver().Inbox}
				in, err := inbox.New[*memstore.Tx](testroles.Of[*memstore.Tx](r), inbox.Config{RetryInterval: c.retry, Retention: time.Hour, RedeliveryWindow: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				in.MustGroup("G", inbox.Options{StoreEvent: c.stores})
				if c.err != "" {
					if err := in.Run(t.Context()); err == nil || err.Error() != c.err {
						t.Errorf("Run: %v, want %s", err, c.err)
					}
					return
				}
				stop := runInbox(t, in)
				pass(20*time.Minute + time.Millisecond)
				stop()
				if len(r.purged) != 2 || len(r.due) != c.due {
					t.Errorf("in 20 minutes %d purges and %d searches for due events, want 2 and %d", len(r.purged), len(r.due), c.due)
				}
			})
		})
	}
}
