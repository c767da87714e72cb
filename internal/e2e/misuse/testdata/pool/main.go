package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// A pool and a connection commit by themselves: an event written there would
// not commit or roll back with the transaction.
func main() {
	var ctx context.Context
	var box *outbox.Outbox[pgx.Tx]
	var pool *pgxpool.Pool
	var conn *pgx.Conn
	var pooled *pgxpool.Conn
	var ev waybill.Event
	_ = box.Write(ctx, pool, ev)   // refused: does not implement pgx.Tx
	_ = box.Write(ctx, conn, ev)   // refused: does not implement pgx.Tx
	_ = box.Write(ctx, pooled, ev) // refused: does not implement pgx.Tx
}
