package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestARepeatDoesNotWaitForWriters: SQLite has one writer at a time, and the
// writer may be slow. A stored answer needs only a read, regardless of the
// number of new keys before it.
func TestARepeatDoesNotWaitForWriters(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	keys, err := idempotency.New(db, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	runs := map[string]func(key string) (idempotency.Result[string], error){
		"Do": func(key string) (idempotency.Result[string], error) {
			return idempotency.Do(ctx, keys, keyRequest(key), func(context.Context) (string, error) { return key, nil })
		},
		"DoTx": func(key string) (idempotency.Result[string], error) {
			return idempotency.DoTx(ctx, keys, keyRequest(key), func(context.Context, *sql.Tx) (string, error) { return key, nil })
		},
	}
	for name, run := range runs {
		for i := range 20 {
			if res, err := run(fmt.Sprint(name, i)); err != nil || res.Replayed {
				t.Fatalf("%s %d: %+v, %v", name, i, res, err)
			}
		}
		writer, err := db.DB().Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := writer.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			t.Fatal(err)
		}
		if res, err := run(name + "0"); err != nil || !res.Replayed || res.Value != name+"0" {
			t.Errorf("%s: a repeat during a write: %+v, %v", name, res, err)
		}
		if _, err := writer.ExecContext(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		shut(t, writer)
	}
}

func keyRequest(key string) idempotency.Request {
	return idempotency.Request{Operation: "pay", Key: key, Hash: idempotency.Hash("v1:" + strings.Repeat("a", 64))}
}
