package main

import (
	"context"
	"database/sql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

func main() {
	var ctx context.Context
	var box *outbox.Outbox[*sql.Tx]
	var db *sql.DB
	var conn *sql.Conn
	var ev waybill.Event
	_ = box.Write(ctx, db, ev)              // refused: cannot use db
	_ = box.Write(ctx, conn, ev)            // refused: cannot use conn
	_ = outbox.WriteSQL(ctx, box, db, ev)   // refused: as outbox.SQLTx value
	_ = outbox.WriteSQL(ctx, box, conn, ev) // refused: as outbox.SQLTx value
}
