package mysqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"time"

	"github.com/waybillhq/waybill/store"
)

// The server makes its list of transactions anew only if nobody has read it for 100 ms; otherwise it shows the last one.
const (
	trxPause = 120 * time.Millisecond
	trxTries = 3
)

// Writers implements [store.Reader]. It takes the PROCESS privilege. The list is good if it shows the transaction that asks, with the very
// statement that asks; if it never is, because many ask, the answer is that it is not known.
func (s *Store) Writers(ctx context.Context) (store.Writers, error) {
	for range trxTries {
		w, ok, err := s.openWriters(ctx)
		if number(err) == errNeedsPrivilege {
			return store.Writers{Unknown: true}, nil
		}
		if err != nil {
			return store.Writers{}, s.explain(err)
		}
		if ok {
			return w, nil
		}
		select {
		case <-time.After(trxPause):
		case <-ctx.Done():
			return store.Writers{}, context.Cause(ctx)
		}
	}
	return store.Writers{Unknown: true}, nil
}

// openWriters asks once, and reports whether the answer is one to this question.
func (s *Store) openWriters(ctx context.Context) (w store.Writers, ok bool, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return w, false, err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	if err := each(ctx, conn, s.sql.drawn, nil, func() {}, &w.Drawn); err != nil {
		return w, false, err
	}
	if _, err := conn.ExecContext(ctx, `START TRANSACTION WITH CONSISTENT SNAPSHOT`); err != nil {
		return w, false, err
	}
	defer func() {
		if _, end := conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`); err == nil {
			err = end
		}
	}()
	question := `/* ` + rand.Text() + ` */ ` + s.sql.writers
	var name string
	var writes bool
	var query sql.NullString
	err = each(ctx, conn, question, nil, func() {
		ok = ok || query.String == question
		if writes {
			w.Open = append(w.Open, name)
		}
	}, &name, &writes, &query)
	return w, ok, err
}
