package linear

import (
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/driver"
)

// runsInMemory is the number of runs of each model on the memory store.
const runsInMemory = 20

func TestMemory(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	for i := range uint64(runsInMemory) {
		target := relayOver(t, openMemory(t).Driver(), faults{}, 0, 1)
		want(t, seed+i, relayModel, runRelay(t, target, seed+i))
		want(t, seed+i, keysModel, runKeys(t, openMemory(t).Driver().Keys, faults{}, seed+i))
		want(t, seed+i, inboxModel, runInbox(t, openMemory(t).Driver().Inbox, faults{}, seed+i))
	}
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	for i := range uint64(runsPerStore) {
		db, f := openSQLite(t), faults{cancel: true}
		want(t, seed+i, relayModel, runRelay(t, relayOver(t, db, f, 0), seed+i))
		want(t, seed+i, keysModel, runKeys(t, db.Keys, f, seed+i))
		want(t, seed+i, inboxModel, runInbox(t, db.Inbox, f, seed+i))
	}
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	db, cut := openPostgres(t)
	onServer(t, db, cut)
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	db, cut := openMySQL(t, testserver.MariaDBName)
	onServer(t, db, cut)
}

func TestMySQL(t *testing.T) {
	t.Parallel()
	db, cut := openMySQL(t, testserver.MySQLName)
	onServer(t, db, cut)
}

// collided reports whether a call failed because of a concurrent one: a
// deadlock, or a settlement in MySQL that moves an event to a table to which
// another settlement is moving it. Such a call has changed nothing, and the
// caller repeats it.
func collided(db any, err error) bool {
	var duplicate *mysql.MySQLError
	r, ok := db.(driver.RetryClassifier)
	return ok && r.IsRetryable(err) || errors.As(err, &duplicate) && duplicate.Number == 1062
}

// onServer runs every model on a store with a server. Every second run
// cuts the connections; in the others an unexpected error fails the test.
func onServer[T any](t *testing.T, db driver.Roles[T], cut func()) {
	t.Helper()
	seed := seedOf(t)
	for i := range runsPerStore {
		f, s := faults{cancel: true, tolerate: func(err error) bool { return collided(db.Inbox, err) }}, seed+uint64(i)
		if i%2 == 1 {
			f.cut = cut
		}
		target := relayOver(t, db, f, lanesPerRun*i, lanesPerRun*i+1)
		want(t, s, relayModel, runRelay(t, target, s))
		want(t, s, keysModel, runKeys(t, db.Keys, f, s))
		want(t, s, inboxModel, runInbox(t, db.Inbox, f, s))
	}
}
