package pgstore_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

type placed struct{ Total int }

var orderPlaced = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// ExampleNew is a whole program. It needs a server, so it is compiled and not
// run.
func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, total) VALUES ($1, $2)`, "A-1", 9990); err != nil {
			return err
		}
		return box.Write(ctx, tx, orderPlaced.New("A-1", placed{Total: 9990}))
	})
	if err != nil {
		log.Fatal(err)
	}
}

// MigrationSQL returns the tables as a script, for deployments in which code
// may not run DDL. Creating a store does not access the database.
func ExampleStore_MigrationSQL() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{Schema: "messaging"})
	if err != nil {
		log.Fatal(err)
	}
	for _, line := range strings.Split(db.MigrationSQL(), "\n") {
		if strings.HasPrefix(line, "CREATE TABLE ") {
			fmt.Println(line)
		}
	}
	// Output:
	// CREATE TABLE IF NOT EXISTS "messaging"."waybill_migration" (
	// CREATE TABLE "messaging"."waybill_outbox" (
	// CREATE TABLE "messaging"."waybill_delayed" (
	// CREATE TABLE "messaging"."waybill_dead" (
	// CREATE TABLE "messaging"."waybill_history" (
	// CREATE TABLE "messaging"."waybill_history_rest" PARTITION OF "messaging"."waybill_history" DEFAULT;
	// CREATE TABLE "messaging"."waybill_dedup" (
	// CREATE TABLE "messaging"."waybill_lane" (
	// CREATE TABLE "messaging"."waybill_node" (
	// CREATE TABLE "messaging"."waybill_setting" (
	// CREATE TABLE "messaging"."waybill_inbox" (
	// CREATE TABLE "messaging"."waybill_idempotency" (
	// CREATE TABLE "messaging"."waybill_job" (
	// CREATE TABLE "messaging"."waybill_job_sent" (
	// CREATE TABLE "messaging"."waybill_destination" (
	// CREATE TABLE "messaging"."waybill_backlog" (
	// CREATE TABLE "messaging"."waybill_backlog_delayed" (
	// CREATE TABLE "messaging"."waybill_backlog_dead" (
	// CREATE TABLE "messaging"."waybill_audit" (
	// CREATE TABLE "messaging"."waybill_rollup" (
}
