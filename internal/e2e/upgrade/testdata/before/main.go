// Command before is a program of the version before destinations: a writer of
// orders, or a relay. It is built in a checkout of that version.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	// the driver of MySQL and MariaDB
	_ "github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run plays a role on a database.
func run(ctx context.Context, role, kind, source, file string) error {
	if kind == "postgres" {
		pool, err := pgxpool.New(ctx, source)
		if err != nil {
			return err
		}
		defer pool.Close()
		db, err := pgstore.New(pool, pgstore.Config{Lanes: 4})
		if err != nil {
			return err
		}
		return play(ctx, role, db.Driver(), file)
	}
	if kind == "sqlite" {
		db, err := sqlitestore.Open(source, sqlitestore.Config{})
		if err != nil {
			return err
		}
		defer db.Close() //nolint:errcheck // everything is committed
		return play(ctx, role, db.Driver(), file)
	}
	pool, err := sql.Open("mysql", source)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := mysqlstore.New(pool, mysqlstore.Config{Lanes: 4})
	if err != nil {
		return err
	}
	return play(ctx, role, db.Driver(), file)
}

func play[T any](ctx context.Context, role string, db driver.Roles[T], file string) error {
	switch role {
	case "migrate":
		_, err := db.Migrator.Migrate(ctx)
		return err
	case "write":
		return write(ctx, db)
	}
	notes, err := journal.Open(file, role)
	if err != nil {
		return err
	}
	r, err := relay.New(db, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		notes.Note(journal.OK, d)
		return nil
	}), relay.Config{PollInterval: 50 * time.Millisecond, Heartbeat: 200 * time.Millisecond, Lease: 5 * time.Second, Logger: slog.Default()})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// write writes orders of eight accounts, in their order, and prints the number
// of orders after each commit.
func write[T any](ctx context.Context, db driver.Roles[T]) error {
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return err
	}
	for n := 0; ctx.Err() == nil; n++ {
		ev := waybill.NewEvent("OrderPlaced", n/8+1)
		ev.AggregateType, ev.AggregateID = "account", fmt.Sprint("old", n%8)
		err := box.InTx(context.WithoutCancel(ctx), func(ctx context.Context, tx T) error { return box.Write(ctx, tx, ev) })
		if err != nil {
			return err
		}
		fmt.Println(n + 1)
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}
