package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/sqlstore"

	"github.com/waybillhq/waybill/store"
)

// tablesPatience is how long SetLanes waits for open transactions that have
// used the tables, in seconds. Later statements queue behind SetLanes, so the
// wait must be short.
const tablesPatience = 30

// highestEpoch is the setting that stores the highest epoch of removed lanes: a
// lane that is added again must not start below it.
const highestEpoch = "highest_epoch"

// SetLanes implements [storedriver.Maintainer]. It needs the privileges ALTER
// and LOCK TABLES. While it works it blocks every other session, including
// producers, and it cannot be canceled once it holds the locks.
//
// The lane of a plain insert is a default of the table, and a constraint
// refuses a lane other than the event's own; changing these commits on its own.
// If the server crashes between that change and the commit of the rest, run
// SetLanes again: it redoes everything, whatever the previous number of lanes.
//
// A writer in another process still uses the old number. The constraint rejects
// its next insert into a wrong lane; the error names the new number, and the
// writer recomputes the lanes.
func (s *backend) SetLanes(ctx context.Context, n int) error {
	if n < 1 || n > sqlstore.MaxLanes {
		return fmt.Errorf("mysqlstore: lane count %d is not between 1 and %d", n, sqlstore.MaxLanes)
	}
	// A check before any session has to wait.
	if err := s.noRelay(ctx, s.db); err != nil {
		return s.explain(err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.explain(err)
	}
	// The session's settings and locks must not return to the pool.
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}()
	unlock, err := s.lock(ctx, conn)
	if err != nil {
		return s.explain(err)
	}
	defer unlock()
	if err := s.setLanes(ctx, conn, n); err != nil {
		return s.explain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
	if s.cfg.Lanes != 0 {
		s.lanes = n
	}
	return nil
}

// lanesChanged reports whether an insert failed because the number of lanes
// changed, and stores the new number. The number comes from the error, because
// the transaction's snapshot may be older than the change.
func (s *backend) lanesChanged(err error, f facts) (facts, bool) {
	if code := number(err); code != errCheckMySQL && code != errCheckMariaDB {
		return f, false
	}
	found := regexp.MustCompile("[`']" + s.cfg.Prefix + "lanes_(\\d+)[`']").FindStringSubmatch(err.Error())
	if found == nil {
		return f, false
	}
	n, _ := strconv.Atoi(found[1])
	if n < 1 || n > sqlstore.MaxLanes || n == f.lanes {
		return f, false
	}
	f.lanes = n
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = &f
	if s.cfg.Lanes != 0 {
		s.lanes = n
	}
	return f, true
}

// noRelay returns an error while a relay is live.
func (s *backend) noRelay(ctx context.Context, q querier) error {
	var relay []byte
	live := false
	err := each(ctx, q, s.sql.liveRelay, nil, func() { live = true }, &relay)
	if err == nil && live {
		err = fmt.Errorf("%w: %q", store.ErrRelayLive, relay)
	}
	return err
}

// setLanes changes the lanes under locks on all affected tables. Without
// autocommit, only UNLOCK TABLES releases the locks.
func (s *backend) setLanes(ctx context.Context, conn *sql.Conn, n int) error {
	var guard string
	drop := ""
	err := each(ctx, conn, s.sql.laneGuards, []any{s.cfg.Schema}, func() { drop += ", DROP CONSTRAINT `" + guard + "`" }, &guard)
	if err != nil {
		return err
	}
	for _, statement := range []string{
		`SET SESSION lock_wait_timeout = ` + strconv.Itoa(tablesPatience), `SET SESSION autocommit = 0`, s.sql.lockTables,
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			if number(err) == errLockTimeout {
				return fmt.Errorf("a transaction that has used the tables is still open: %w", err)
			}
			return err
		}
	}
	ctx = context.WithoutCancel(ctx)
	defer func() { _, _ = conn.ExecContext(ctx, `UNLOCK TABLES`) }()
	if err := s.noRelay(ctx, conn); err != nil {
		return err
	}
	var old int
	if err := each(ctx, conn, s.sql.readSetting, []any{"lanes"}, nil, &old); err != nil {
		return err
	}
	// This comes first, because the account may lack the privilege for it.
	if _, err := conn.ExecContext(ctx, fill(withLanes(s.sql.freeLane, n), "{drop}", drop)); err != nil {
		return err
	}
	err = s.moveToLanes(ctx, conn, n)
	if err == nil {
		err = s.addAudit(ctx, conn, 1)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, `COMMIT`)
	}
	if err != nil {
		_, _ = conn.ExecContext(ctx, `ROLLBACK`)
		_, _ = conn.ExecContext(ctx, fill(withLanes(s.sql.freeLane, old), "{drop}", ""))
		_, _ = conn.ExecContext(ctx, withLanes(s.sql.guardLane, old))
		return err
	}
	if _, err := conn.ExecContext(ctx, withLanes(s.sql.guardLane, n)); err != nil {
		return fmt.Errorf("the events have moved, but the constraint on their lanes is missing; run SetLanes again: %w", err)
	}
	return nil
}

// withLanes inserts the number of lanes into a statement that computes lanes.
func withLanes(statement string, n int) string { return fill(statement, "{modulus}", strconv.Itoa(n)) }

// moveToLanes moves all rows to their new lanes and recreates the lanes, in an
// open transaction.
//
// Events that were in flight when a relay died are now spread over all lanes,
// so every lane becomes as unclean as the worst one was.
func (s *backend) moveToLanes(ctx context.Context, conn querier, n int) error {
	var last, window int
	var epoch int64
	var dirty bool
	if err := each(ctx, conn, s.sql.lanesNow, nil, nil, &last, &epoch, &window, &dirty); err != nil {
		return err
	}
	var highest int64
	if err := each(ctx, conn, s.sql.readSetting, []any{highestEpoch}, nil, &highest); err != nil {
		return err
	}
	highest = max(highest, epoch)
	run := func(query string, args ...any) error {
		_, err := conn.ExecContext(ctx, query, args...)
		return err
	}
	for _, statement := range s.sql.rehash {
		if err := run(withLanes(statement, n)); err != nil {
			return err
		}
	}
	if err := run(s.sql.raiseEpochs, window, dirty); err != nil {
		return err
	}
	if err := run(s.sql.dropLanes, n); err != nil {
		return err
	}
	if have := last + 1; have < n {
		var rows []string
		for lane := have; lane < n; lane++ {
			rows = append(rows, fmt.Sprintf("(%d, %d, %d, %t)", lane, highest+1, window, dirty))
		}
		if err := run(s.sql.insertLanes + strings.Join(rows, ", ")); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{"lanes": strconv.Itoa(n), highestEpoch: strconv.FormatInt(highest, 10)} {
		if err := run(s.sql.setSetting, name, value, value); err != nil {
			return err
		}
	}
	return nil
}
