package main

import (
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

// Handles where a store is wanted, and the wrong handle for a store.
func main() {
	var pool *pgxpool.Pool
	var db *sql.DB
	_, _ = outbox.New(pool, outbox.Config{})      // refused: type *pgxpool.Pool
	_, _ = pgstore.New(db, pgstore.Config{})      // refused: cannot use db
	_, _ = pgstore.NewSQL(pool, pgstore.Config{}) // refused: cannot use pool
}
