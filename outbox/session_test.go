package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// sqlDB is a fake store over database/sql.
type sqlDB struct {
	hub       driver.Hub
	commitErr error
	appendErr error
	appended  []waybill.Event
}

func (d *sqlDB) Local() *driver.Hub { return &d.hub }

func (d *sqlDB) Begin(context.Context, *sql.TxOptions) (driver.Session[*sql.Tx], error) {
	return &sqlSession{db: d, tx: new(sql.Tx)}, nil
}

func (d *sqlDB) Append(_ context.Context, _ *sql.Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	return d.take(evs)
}

func (d *sqlDB) Committed(context.Context, waybill.ID) (bool, error) { return true, nil }

func (d *sqlDB) take(evs []waybill.Event) ([]driver.AppendResult, error) {
	if d.appendErr != nil {
		return nil, d.appendErr
	}
	placed := make([]driver.AppendResult, len(evs))
	for i, ev := range evs {
		d.appended = append(d.appended, ev)
		placed[i].ID = ev.ID
		if ev.DedupKey != "" {
			placed[i].ID = waybill.ID{15: 1} // absorbed
		}
	}
	return placed, nil
}

type sqlSession struct {
	db *sqlDB
	tx *sql.Tx
}

func (s *sqlSession) Tx() *sql.Tx                    { return s.tx }
func (s *sqlSession) Owns(tx *sql.Tx) bool           { return tx == s.tx }
func (s *sqlSession) Rollback(context.Context) error { return nil }
func (s *sqlSession) Commit(context.Context, []waybill.ID, bool) (driver.CommitInfo, error) {
	return driver.CommitInfo{}, s.db.commitErr
}

// appenderDB is a store that also writes to types that only resemble a *sql.Tx.
type appenderDB struct {
	*sqlDB
	through []driver.SQLTx
}

func (d *appenderDB) AppendSQL(_ context.Context, tx driver.SQLTx, evs []waybill.Event) ([]driver.AppendResult, error) {
	d.through = append(d.through, tx)
	return d.take(evs)
}

// hidden is the transaction type of a library.
type hidden struct{ driver.SQLTx }

func TestWriteSQL(t *testing.T) {
	var after []waybill.Event
	db := &appenderDB{sqlDB: &sqlDB{}}
	box, err := outbox.New(testroles.Of[*sql.Tx](db), outbox.Config{Hooks: []outbox.Hook{{
		AfterWrite: func(_ context.Context, info outbox.AfterWriteInfo) { after = append(after, info.Events...) },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := waybill.ContextWithOrigin(t.Context(), waybill.Origin{TenantID: "acme"})
	lib := &hidden{}
	ev, dup := waybill.NewEvent("t", 1), waybill.NewEvent("dup", 1)
	dup.DedupKey = "k"
	if err := outbox.WriteSQL(ctx, box, lib, ev, dup); err != nil {
		t.Fatal(err)
	}
	if len(db.through) != 1 || db.through[0] != lib || len(db.appended) != 2 {
		t.Fatalf("written through %v: %v", db.through, db.appended)
	}
	// WriteSQL behaves like any other write: complete events, the origin of the
	// context, and hooks for the events that were not absorbed.
	if got := db.appended[0]; got.TenantID != "acme" || got.ID.IsZero() || got.ContentType != waybill.JSON {
		t.Errorf("written is %+v", got)
	}
	if len(after) != 1 || after[0].Type != "t" {
		t.Errorf("AfterWrite saw %v", after)
	}
	// A *sql.Tx takes the default path.
	if err := outbox.WriteSQL(ctx, box, new(sql.Tx), ev); err != nil || len(db.through) != 1 || len(db.appended) != 3 {
		t.Errorf("a plain *sql.Tx: %v, through %v", err, db.through)
	}
}

func TestWriteSQLErrors(t *testing.T) {
	db := &appenderDB{sqlDB: &sqlDB{}}
	box, err := outbox.New(testroles.Of[*sql.Tx](db), outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ev := waybill.NewEvent("t", 1)
	var noTx *sql.Tx
	var noLib *hidden
	for name, tx := range map[string]driver.SQLTx{"nil": nil, "a nil *sql.Tx": noTx, "a nil pointer": noLib} {
		if err := outbox.WriteSQL(t.Context(), box, tx, ev); !errors.Is(err, waybill.ErrNoTx) {
			t.Errorf("%s: %v, want ErrNoTx", name, err)
		}
		if err := outbox.WriteSQL(t.Context(), box, tx); err != nil {
			// No events, no effect.
			t.Errorf("%s: writing nothing: %v", name, err)
		}
	}
	if err := outbox.WriteSQL(t.Context(), box, &hidden{}, waybill.Event{}); err == nil || len(db.through) != 0 {
		t.Errorf("an invalid event: %v, through %v", err, db.through)
	}
	db.appendErr = errBoom
	if err := outbox.WriteSQL(t.Context(), box, &hidden{}, ev); !errors.Is(err, errBoom) {
		t.Errorf("what the database refused: %v", err)
	}
	plain, err := outbox.New(testroles.Of[*sql.Tx](&sqlDB{}), outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = outbox.WriteSQL(t.Context(), plain, &hidden{}, ev)
	if err == nil || !strings.Contains(err.Error(), "sqlDB") || !strings.Contains(err.Error(), "hidden") {
		t.Errorf("a store that cannot: %v, want both types named", err)
	}
}

func TestUncertainError(t *testing.T) {
	reset := errors.New("connection reset by peer")
	db := &sqlDB{commitErr: fmt.Errorf("%w: commit: %w", waybill.ErrUncertain, reset)}
	var told []string
	box, err := outbox.New(testroles.Of[*sql.Tx](db), outbox.Config{Hooks: []outbox.Hook{{
		AfterCommit:   func(context.Context, outbox.AfterCommitInfo) { told = append(told, "commit") },
		AfterRollback: func(context.Context, outbox.AfterRollbackInfo) { told = append(told, "rollback") },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	woken := 0
	defer db.hub.Listen(func(driver.Commit) { woken++ })()
	evs := []waybill.Event{waybill.NewEvent("a", nil), waybill.NewEvent("b", nil)}
	evs[0].ID, evs[1].ID = waybill.NewID(), waybill.NewID()
	agg := &thing{}
	agg.Raise(waybill.NewEvent("raised", nil))
	err = box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(box.Write(ctx, tx, evs...), box.Track(ctx, agg))
	})
	var uncertain *outbox.UncertainError
	if !errors.As(err, &uncertain) || !errors.Is(err, waybill.ErrUncertain) || !errors.Is(err, reset) {
		t.Fatalf("InTx: %v", err)
	}
	want := []waybill.ID{evs[0].ID, evs[1].ID, agg.Raised()[0].ID}
	if !slices.Equal(uncertain.Events, want) {
		t.Errorf("the events are %v, want %v", uncertain.Events, want)
	}
	for _, part := range []string{"connection reset by peer", "3 events", "Committed(" + evs[0].ID.String() + ")"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q does not contain %q", err, part)
		}
	}
	if len(told) != 0 || woken != 1 || len(agg.Raised()) != 1 {
		t.Errorf("published %v, woken %d times, the aggregate has %d events: the outcome is unknown", told, woken, len(agg.Raised()))
	}
	// Without events there is no id to query, and the outcome is uncertain
	// nevertheless.
	err = box.InTx(t.Context(), func(context.Context, *sql.Tx) error { return nil })
	if !errors.As(err, &uncertain) || len(uncertain.Events) != 0 || strings.Contains(err.Error(), "events") || !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx without events: %v", err)
	}
	if bare := (&outbox.UncertainError{Err: reset}); !errors.Is(bare, waybill.ErrUncertain) || errors.Is(bare, waybill.ErrDead) {
		t.Error("an UncertainError that wraps something else does not match ErrUncertain alone")
	}
}

// A definite commit error is returned unchanged.
func TestFailedCommit(t *testing.T) {
	db := &sqlDB{commitErr: errBoom}
	rolledBack := 0
	box, err := outbox.New(testroles.Of[*sql.Tx](db), outbox.Config{Hooks: []outbox.Hook{{
		AfterRollback: func(_ context.Context, info outbox.AfterRollbackInfo) { rolledBack += len(info.Events) },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), func(ctx context.Context, _ *sql.Tx) error { return box.Emit(ctx, waybill.NewEvent("t", nil)) })
	var uncertain *outbox.UncertainError
	if !errors.Is(err, errBoom) || errors.As(err, &uncertain) || rolledBack != 1 {
		t.Errorf("InTx: %v; %d events were rolled back", err, rolledBack)
	}
}
