package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store/pgstore"
)

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields, and does not quote the URL.
func TestConfigErrors(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nowhere") // does not connect
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = pgstore.New(pool, pgstore.Config{Schema: `x"; DROP TABLE y`, Prefix: "1st", Lanes: 5000, NotifyInterval: -1, ListenURL: "postgres://u:secret@[/"})
	want := `pgstore: Config.Schema: "x\"; DROP TABLE y" is not a plain name (letters, digits and underscores, no digit first)
Config.Prefix: "1st" is not a plain name (letters, digits and underscores, no digit first)
Config.Lanes: 5000 is not between 1 and 1024
Config.ListenURL: invalid PostgreSQL URL`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	if _, err := pgstore.New(nil, pgstore.Config{}); err == nil {
		t.Error("New accepts a nil pool")
	}
	if _, err := pgstore.NewSQL(nil, pgstore.Config{}); err == nil {
		t.Error("NewSQL accepts a nil database")
	}
}
