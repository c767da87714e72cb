package orm_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
)

// saveGorm writes an order and its event in a transaction of gorm.
func saveGorm(ctx context.Context, tx *gorm.DB, box *outbox.Outbox[*sql.Tx], o Order) error {
	if err := tx.WithContext(ctx).Create(&o).Error; err != nil {
		return err
	}
	// nil outside a transaction; WriteSQL refuses that
	conn, _ := tx.Statement.ConnPool.(outbox.SQLTx)
	return outbox.WriteSQL(ctx, box, conn, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

// inGorm calls fn in a transaction of gorm, and wakes the relay after the
// commit.
func inGorm(ctx context.Context, db *gorm.DB, box *outbox.Outbox[*sql.Tx], fn func(tx *gorm.DB) error) error {
	if err := db.WithContext(ctx).Transaction(fn); err != nil {
		return err
	}
	box.Wake()
	return nil
}

// gormOver returns gorm in a transaction that the caller begins and ends.
func gormOver(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	// with a Context it is a copy: db keeps its own pool
	session := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	session.Statement.ConnPool = tx
	return session
}

// joinGorm writes an order with gorm, and its event, in the transaction of
// InTx.
func joinGorm(ctx context.Context, tx *sql.Tx, db *gorm.DB, box *outbox.Outbox[*sql.Tx], o Order) error {
	if err := gormOver(ctx, db, tx).Create(&o).Error; err != nil {
		return err
	}
	return box.Write(ctx, tx, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

// bothWays places an order in a transaction of gorm, and another in one of
// Waybill.
func bothWays(ctx context.Context, db *gorm.DB, box *outbox.Outbox[*sql.Tx], first, second Order) error {
	err := inGorm(ctx, db, box, func(tx *gorm.DB) error {
		return saveGorm(ctx, tx, box, first)
	})
	if err != nil {
		return err
	}
	return box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return joinGorm(ctx, tx, db, box, second)
	})
}

func openGorm(t *testing.T, sqldb *sql.DB, cfg gorm.Config) *gorm.DB {
	t.Helper()
	cfg.Logger = logger.Discard
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: sqldb}), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestGorm(t *testing.T) {
	for name, cfg := range map[string]gorm.Config{
		"Plain":       {},
		"PrepareStmt": {PrepareStmt: true},
		"Bare":        {SkipDefaultTransaction: true, DisableNestedTransaction: true},
	} {
		t.Run(name, func(t *testing.T) {
			var db *gorm.DB
			contract[*sql.Tx]{
				open: func(t *testing.T) shop[*sql.Tx] {
					s := openSQL(t)
					db = openGorm(t, s.sqldb, cfg)
					return s
				},
				own: func(ctx context.Context, s shop[*sql.Tx], o Order, then func(writer) error) error {
					return inGorm(ctx, db, s.box, func(tx *gorm.DB) error {
						if err := saveGorm(ctx, tx, s.box, o); err != nil {
							return err
						}
						return then(func(evs ...waybill.Event) error {
							conn, _ := tx.Statement.ConnPool.(outbox.SQLTx)
							return outbox.WriteSQL(ctx, s.box, conn, evs...)
						})
					})
				},
				joined: func(ctx context.Context, s shop[*sql.Tx], o Order, then func() error) error {
					return s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
						if err := joinGorm(ctx, tx, db, s.box, o); err != nil {
							return err
						}
						return then()
					})
				},
			}.run(t)
		})
	}
}

func TestGormBothWays(t *testing.T) {
	s := openSQL(t)
	second := Order{ID: "A-2", Total: 100}
	if err := bothWays(t.Context(), openGorm(t, s.sqldb, gorm.Config{}), s.box, order, second); err != nil {
		t.Fatal(err)
	}
	s.wants(t, order, second)
}

// TestGormPreparedHides: the case with prepared statements does test a
// transaction that hides its *sql.Tx.
func TestGormPreparedHides(t *testing.T) {
	s := openSQL(t)
	db := openGorm(t, s.sqldb, gorm.Config{PrepareStmt: true})
	err := db.Transaction(func(tx *gorm.DB) error {
		if _, ok := tx.Statement.ConnPool.(*gorm.PreparedStmtTX); !ok {
			t.Errorf("the transaction is a %T", tx.Statement.ConnPool)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGormNoTransaction: outside a transaction, gorm's handle has the same type
// as inside: the recipe detects it at run time.
func TestGormNoTransaction(t *testing.T) {
	for name, cfg := range map[string]gorm.Config{"Plain": {}, "PrepareStmt": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			s := openSQL(t)
			db := openGorm(t, s.sqldb, cfg)
			if err := saveGorm(t.Context(), db, s.box, order); !errors.Is(err, waybill.ErrNoTx) {
				t.Errorf("got the error %v, want %v", err, waybill.ErrNoTx)
			}
			if n := len(s.events(t)); n != 0 {
				t.Errorf("%d events were written", n)
			}
		})
	}
}

// TestGormSavepoint: a rolled back savepoint of gorm removes its events, and no
// others.
func TestGormSavepoint(t *testing.T) {
	for name, cfg := range map[string]gorm.Config{"Plain": {}, "PrepareStmt": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			s := openSQL(t)
			db := openGorm(t, s.sqldb, cfg)
			err := inGorm(t.Context(), db, s.box, func(tx *gorm.DB) error {
				if err := saveGorm(t.Context(), tx, s.box, order); err != nil {
					return err
				}
				inner := tx.Transaction(func(tx *gorm.DB) error {
					if err := saveGorm(t.Context(), tx, s.box, Order{ID: "A-2"}); err != nil {
						t.Error(err)
					}
					return errChanged
				})
				if !errors.Is(inner, errChanged) {
					t.Errorf("got the error %v, want %v", inner, errChanged)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			s.wants(t, order)
		})
	}
}

// TestGormOver: inside InTx, a nested transaction of gorm is a savepoint too,
// the hooks get the surviving events, and db itself is not changed.
func TestGormOver(t *testing.T) {
	s := openSQL(t)
	db := openGorm(t, s.sqldb, gorm.Config{PrepareStmt: true})
	pool := db.Statement.ConnPool
	err := s.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := joinGorm(ctx, tx, db, s.box, order); err != nil {
			return err
		}
		inner := gormOver(ctx, db, tx).Transaction(func(orm *gorm.DB) error {
			if err := saveGorm(ctx, orm, s.box, Order{ID: "A-2"}); err != nil {
				t.Error(err)
			}
			return errChanged
		})
		if !errors.Is(inner, errChanged) {
			t.Errorf("got the error %v, want %v", inner, errChanged)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(t, order)
	if ev, _ := outboxtest.One(t, s.rec, OrderPlaced); ev.AggregateID != order.ID {
		t.Errorf("the hook saw the event of %s", ev.AggregateID)
	}
	if db.Statement.ConnPool != pool {
		t.Error("the handle was left with the transaction")
	}
}
