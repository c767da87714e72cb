package mysqlstore_test

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestARepeatIsOneStatement: a repeat costs one SELECT, outside of any
// transaction.
func TestARepeatIsOneStatement(t *testing.T) { onBoth(t, testARepeatIsOneStatement) }

func testARepeatIsOneStatement(t *testing.T) {
	s, db := openStore(t, nil)
	db.SetMaxOpenConns(1) // the server counts per connection
	keys, err := idempotency.New(s, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	req := idempotency.Request{Operation: "pay", Key: "it's \\ one", Hash: idempotency.Hash("v1:" + strings.Repeat("a", 64))}
	for name, run := range map[string]func() (idempotency.Result[int], error){
		"Do": func() (idempotency.Result[int], error) {
			return idempotency.Do(ctx, keys, req, func(context.Context) (int, error) { return 7, nil })
		},
		"DoTx": func() (idempotency.Result[int], error) {
			return idempotency.DoTx(ctx, keys, req, func(context.Context, *sql.Tx) (int, error) { return 7, nil })
		},
	} {
		if _, err := run(); err != nil {
			t.Fatal(err)
		}
		before := statements(t, db)
		if res, err := run(); err != nil || !res.Replayed || res.Value != 7 {
			t.Errorf("%s: a repeat gets %+v, %v", name, res, err)
		}
		// One is the query itself.
		if n := statements(t, db) - before - 1; n != 1 {
			t.Errorf("%s: a repeat takes %d statements", name, n)
		}
	}
}

// A claim that is refused returns a record that is not free. MySQL reads the
// record in a second statement, and the attempt that had the key may have
// failed in between.
func TestRefusedClaim(t *testing.T) { onBoth(t, testRefusedClaim) }

func testRefusedClaim(t *testing.T) {
	s, _ := openStore(t, nil)
	if err := s.PretendMySQL(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys, id := s.Driver().Keys, store.KeyID{Operation: "pay", Key: "one"}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				c := driver.KeyClaim{KeyID: id, Hash: "v1:" + strings.Repeat("a", 64), Owner: waybill.NewID(), Lease: time.Hour}
				r, claimed, err := keys.ClaimKey(t.Context(), c)
				switch {
				case err != nil:
					t.Error(err)
				case claimed:
					end := driver.KeyEnd{State: store.KeyFailed, Answer: driver.KeyAnswer{Retention: time.Hour}}
					if did, err := keys.EndKey(t.Context(), driver.KeyAttempt{KeyID: id, Owner: c.Owner, Fence: r.Fence}, end); !did || err != nil {
						t.Errorf("EndKey: %t, %v", did, err)
					}
				case r.State != store.KeyProcessing:
					t.Errorf("a claim was refused with a %s record", r.State)
				}
			}
		})
	}
	wg.Wait()
}

// statements returns the number of commands that the connection has sent,
// including this one.
func statements(t *testing.T, db *sql.DB) int {
	t.Helper()
	var name, value string
	if err := db.QueryRowContext(t.Context(), `SHOW SESSION STATUS LIKE 'Questions'`).Scan(&name, &value); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
