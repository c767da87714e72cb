package pgstore

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A failed COMMIT is certain only if the server itself reports the failure and
// stays up.
func TestAnsweredNo(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a constraint at the commit": {&pgconn.PgError{SeverityUnlocalized: "ERROR", Severity: "FEHLER", Code: "23503"}, true},
		"a serialization failure":    {&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40001"}, true},
		"COMMIT answered ROLLBACK":   {pgx.ErrTxCommitRollback, true},
		"a server that is stopped":   {&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, false},
		"any fatal error":            {&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "XX000"}, false},
		"it says that it is unknown": {&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40003"}, false},
		"a lost connection":          {errors.New("unexpected EOF"), false},
	} {
		if got := answeredNo(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
