package mysqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/waybillhq/waybill/store"
)

// How often to look again when somebody is just committing, and how long after.
const (
	commitTries = 5
	commitPause = time.Millisecond
)

// Writers implements [store.Reader]. It takes the PROCESS privilege. The server makes its table of transactions anew only if nobody has read it
// for 100 ms, and shows the last one otherwise. It is good if it shows the transaction that asks, with the very statement that asks. Where
// others keep reading it, the server's status tells.
func (s *Store) OpenWriters(ctx context.Context) (store.WriterState, error) {
	w, ok, err := s.openWriters(ctx)
	if number(err) == errNotText { // the statement of another session has bytes that are no text
		ok, err = false, nil
	}
	if err == nil && !ok {
		// What was drawn stays as it was asked before: it may be too little, never too much.
		w.Open, ok, err = s.writersByStatus(ctx)
	}
	switch {
	case number(err) == errNeedsPrivilege, number(err) == errNotText:
		return store.WriterState{Unknown: true}, nil
	case err != nil:
		return store.WriterState{}, s.explain(err)
	case !ok:
		return store.WriterState{Unknown: true}, nil
	}
	return w, nil
}

// writersByStatus asks until nobody is just committing.
func (s *Store) writersByStatus(ctx context.Context) (open []string, ok bool, err error) {
	for range commitTries {
		open, answer, err := s.statusWriters(ctx)
		if err != nil || answer != statusCommitting {
			return open, answer == statusKnown, err
		}
		select {
		case <-time.After(commitPause):
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
	return nil, false, nil
}

// openWriters asks once, and reports whether the answer is one to this question.
func (s *Store) openWriters(ctx context.Context) (w store.WriterState, ok bool, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return w, false, err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	if err := each(ctx, conn, s.sql.drawn, nil, func() {}, &w.HighSeq); err != nil {
		return w, false, err
	}
	if w.Issued, err = s.issued(ctx, conn); err != nil {
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

// autoIncrement finds the next number in a table's definition. A table that
// never had a row has none there.
var autoIncrement = regexp.MustCompile(`\) ENGINE=.* AUTO_INCREMENT=(\d+)`)

// issued returns the last number that AUTO_INCREMENT of the outbox has handed
// out. The highest seq in the table is not it: delivered rows are deleted. The
// definition is the one place where both servers show the counter as it is;
// information_schema of MySQL shows a copy that is up to a day old.
func (s *Store) issued(ctx context.Context, conn *sql.Conn) (int64, error) {
	var table, definition string
	if err := each(ctx, conn, s.sql.definition, nil, func() {}, &table, &definition); err != nil {
		return 0, err
	}
	found := autoIncrement.FindStringSubmatch(definition)
	if found == nil {
		return 0, nil
	}
	next, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("mysqlstore: AUTO_INCREMENT of %s: %w", table, err)
	}
	return next - 1, nil
}
