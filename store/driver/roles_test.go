package driver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

type (
	handle = *struct{}
	roles  = driver.Roles[handle]
)

// halves is a store that has a hub and implements nothing else.
type halves struct {
	driver.Unimplemented[handle]
	hub driver.Hub
}

func (h *halves) Local() *driver.Hub { return &h.hub }

type nowhere struct{}

func (nowhere) Deliver(_ context.Context, ds []waybill.Delivery) []error {
	return make([]error, len(ds))
}

// constructors call each constructor that takes a store.
var constructors = map[string]func(db driver.Store[handle]) error{
	"outbox.New": func(db driver.Store[handle]) error {
		_, err := outbox.New(db, outbox.Config{})
		return err
	},
	"relay.New": func(db driver.Store[handle]) error {
		_, err := relay.New(db, nowhere{}, relay.Config{})
		return err
	},
	"inbox.New": func(db driver.Store[handle]) error {
		_, err := inbox.New(db, inbox.Config{})
		return err
	},
	"idempotency.New": func(db driver.Store[handle]) error {
		_, err := idempotency.New(db, idempotency.Config{})
		return err
	},
	"reconcile.New": func(db driver.Store[handle]) error {
		_, err := reconcile.New(db, nil, reconcile.Config{})
		return err
	},
	"reconcile.StuckKeys": func(db driver.Store[handle]) error {
		return reconcile.StuckKeys(db, time.Hour).Check(context.Background(), reconcile.Window{}, func(string) {})
	},
	"reconcile.UnrecordedReport": func(db driver.Store[handle]) error {
		job := reconcile.UnrecordedReport(db, "billing", time.Hour, nil)
		return job.Check(context.Background(), reconcile.Window{}, func(string) {})
	},
	"admin.NewOutbox": func(db driver.Store[handle]) error {
		_, err := admin.NewOutbox(db, admin.Config{})
		return err
	},
	"admin.NewInbox": func(db driver.Store[handle]) error {
		_, err := admin.NewInbox(db, admin.Config{})
		return err
	},
	"admin.NewKeys": func(db driver.Store[handle]) error {
		_, err := admin.NewKeys(db, admin.Config{})
		return err
	},
}

// TestMissingRoles: the error of a constructor names the package, the role that
// the store lacks, and the roles that the store has.
func TestMissingRoles(t *testing.T) {
	db := &halves{}
	none, writer := roles{}, roles{Outbox: db}
	for _, c := range []struct {
		constructor string
		db          roles
		want        string
	}{
		{"outbox.New", none, "outbox: the store lacks the role Outbox; it has no roles"},
		{"outbox.New", roles{Relay: db}, "outbox: the store lacks the role Outbox; it has the roles Relay"},
		{"relay.New", writer, "relay: the store lacks the role Relay; it has the roles Outbox"},
		{"inbox.New", writer, "inbox: the store lacks the role Inbox; it has the roles Outbox"},
		{"idempotency.New", writer, "idempotency: the store lacks the role Keys; it has the roles Outbox"},
		{"reconcile.New", writer, "reconcile: the store lacks the role Jobs; it has the roles Outbox"},
		{"reconcile.New", none, "reconcile: the store lacks the role Jobs, Outbox; it has no roles"},
		{"reconcile.StuckKeys", roles{Keys: db}, "reconcile: the store lacks the role KeyRecords; it has the roles Keys"},
		{"reconcile.UnrecordedReport", writer, "reconcile: the store lacks the role HistoryAudit, InboxRecords; it has the roles Outbox"},
		{"admin.NewOutbox", roles{Outbox: db, Relay: db}, "admin: the store lacks the role OutboxAdmin; it has the roles Outbox, Relay"},
		{"admin.NewInbox", writer, "admin: the store lacks the role InboxRecords; it has the roles Outbox"},
		{"admin.NewKeys", writer, "admin: the store lacks the role KeyRecords; it has the roles Outbox"},
	} {
		err := constructors[c.constructor](c.db)
		var missing *driver.MissingRoleError
		if !errors.As(err, &missing) || err.Error() != c.want {
			t.Errorf("%s over a store with %q: %v, want %s", c.constructor, c.db.Names(), err, c.want)
		}
	}
}

// TestRolesWithoutHub: a constructor rejects a role whose Local returns nil,
// which the first commit would dereference otherwise.
func TestRolesWithoutHub(t *testing.T) {
	good, bad := &halves{}, driver.Unimplemented[handle]{}
	for _, c := range []struct {
		constructor, role string
		db                roles
	}{
		{"outbox.New", "outbox: the store's role Outbox", roles{Outbox: bad}},
		{"relay.New", "relay: the store's role Relay", roles{Relay: bad}},
		{"inbox.New", "inbox: the store's role Inbox", roles{Inbox: bad}},
		{"idempotency.New", "idempotency: the store's role Keys", roles{Keys: bad}},
		{"reconcile.New", "reconcile: the store's role Jobs", roles{Outbox: good, Jobs: bad}},
		{"reconcile.New", "reconcile: the store's role Outbox", roles{Outbox: bad, Jobs: good}},
		// NewOutbox wakes the relays of a store that has the role Relay.
		{"admin.NewOutbox", "admin: the store's role Relay", roles{OutboxAdmin: good, Relay: bad}},
	} {
		want := c.role + " has no hub: Local returned nil"
		if err := constructors[c.constructor](c.db); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", c.constructor, err, want)
		}
	}
	// A role without Local needs no hub.
	if err := constructors["admin.NewOutbox"](roles{OutboxAdmin: good}); err != nil {
		t.Errorf("admin.NewOutbox: %v", err)
	}
}

// TestUnimplementedMethodsNameThemselves: a constructor accepts the role, and
// the user sees which method is missing.
func TestUnimplementedMethodsNameThemselves(t *testing.T) {
	box, err := outbox.New(roles{Outbox: &halves{}}, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), func(context.Context, handle) error { return nil })
	if !errors.Is(err, driver.ErrUnimplemented) || !strings.Contains(err.Error(), "Begin") {
		t.Errorf("InTx over a store without Begin returned %v", err)
	}
}
