package mysqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// The number of retries while another transaction is committing, and the pause
// between them.
const (
	commitTries = 5
	commitPause = time.Millisecond
)

// OpenWriters implements [driver.Reader]. It needs the PROCESS privilege. The
// server refreshes its table of transactions only if no session has read it for
// 100 ms, and otherwise returns the previous copy. A copy is current if it
// contains the querying transaction with the very statement that queries. If
// other sessions keep reading the table, OpenWriters uses the server's status
// instead.
func (s *backend) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	w, ok, err := s.openWriters(ctx)
	// The statement of another session is not valid text.
	if number(err) == errNotText {
		ok, err = false, nil
	}
	if err == nil && !ok {
		// HighSeq keeps its earlier value, which may be too low but never too
		// high.
		w.Open, ok, err = s.writersByStatus(ctx)
	}
	switch {
	case number(err) == errNeedsPrivilege, number(err) == errNotText:
		return driver.WriterState{Unknown: true}, nil
	case err != nil:
		return driver.WriterState{}, s.explain(err)
	case !ok:
		return driver.WriterState{Unknown: true}, nil
	}
	return w, nil
}

// writersByStatus queries the status until no transaction is committing.
func (s *backend) writersByStatus(ctx context.Context) (open []string, ok bool, err error) {
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

// openWriters queries once, and reports whether the answer is current.
func (s *backend) openWriters(ctx context.Context) (w driver.WriterState, ok bool, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return w, false, err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	var text string
	var at standing
	if err := each(ctx, conn, s.sql.drawn, nil, nil, &w.HighSeq, &text); err != nil {
		return w, false, err
	}
	if err := errors.Join(at.scan(text), s.primaries.check(at, noLanes)); err != nil {
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

// autoIncrement finds the next number in the last line of a table's definition.
// The definition of a table that never had a row contains none. A table of the
// system tablespace has a comment before the engine.
var autoIncrement = regexp.MustCompile(`\n\)[^\n]* AUTO_INCREMENT=(\d+)[^\n]*(?:\n|$)`)

// issued returns the last number that AUTO_INCREMENT of the outbox has
// assigned. The highest seq in the table is not that number: delivered rows are
// deleted. Only the definition shows the current counter on both servers;
// information_schema of MySQL shows a copy that is up to a day old.
func (s *backend) issued(ctx context.Context, conn querier) (int64, error) {
	var table, definition string
	if err := each(ctx, conn, s.sql.definition, nil, func() {}, &table, &definition); err != nil {
		return 0, err
	}
	last, err := lastIssued(definition)
	if err != nil {
		return 0, fmt.Errorf("mysqlstore: AUTO_INCREMENT of %s: %w", table, err)
	}
	return last, nil
}

// lastIssued returns the last number that a table's definition has assigned.
func lastIssued(definition string) (int64, error) {
	found := autoIncrement.FindStringSubmatch(definition)
	if found == nil {
		return 0, nil
	}
	next, err := strconv.ParseInt(found[1], 10, 64)
	return next - 1, err
}
