package main

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

// A transaction of another driver.
func main() {
	var ctx context.Context
	var pool *pgxpool.Pool
	var sqlTx *sql.Tx
	var pgxTx pgx.Tx
	var ev waybill.Event
	db, _ := pgstore.New(pool, pgstore.Config{})
	box, _ := outbox.New(db, outbox.Config{})
	_ = box.Write(ctx, sqlTx, ev) // refused: does not implement pgx.Tx
	sqlBox, _ := outbox.New(db.SQL(nil), outbox.Config{})
	_ = sqlBox.Write(ctx, pgxTx, ev)                                              // refused: cannot use pgxTx
	_ = outbox.WriteSQL(ctx, box, sqlTx, ev)                                      // refused: cannot use box
	_ = outbox.WriteSQL(ctx, sqlBox, pgxTx, ev)                                   // refused: as outbox.SQLTx value
	_ = box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return nil }) // refused: cannot use func
}
