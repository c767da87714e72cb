package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/store"
)

// tablesPatience is how long SetLanes waits for transactions that have used the tables, in seconds. Whoever comes after it waits behind it,
// so it must not be long.
const tablesPatience = 30

// highestEpoch is the setting that remembers the highest epoch of lanes that were removed: one that is added again must not begin below it.
const highestEpoch = "highest_epoch"

// SetLanes implements [store.Maintainer]. It needs the rights to ALTER and to LOCK TABLES, and locks everybody out while it works, producers
// too. From then on it cannot be cancelled.
//
// The lane of a plain insert is a default of the table, and a constraint refuses a lane that is not
// the event's; changing these commits by itself. Should the server die between that and the commit
// of the rest, run SetLanes again: it does everything anew, whatever the number of lanes was.
//
// A writer of another process remembers the old number. Its next insert into another lane than the
// new one is refused by the constraint, which tells it the new number, and it computes the lanes
// again.
func (s *Store) SetLanes(ctx context.Context, n int) error {
	if n < 1 || n > maxLanes {
		return fmt.Errorf("mysqlstore: %d lanes: not between 1 and %d", n, maxLanes)
	}
	if err := s.noRelay(ctx, s.db); err != nil { // a look, before anybody has to wait
		return s.explain(err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.explain(err)
	}
	// The session's settings and locks must not come back with the connection.
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

// lanesChanged reports whether an insert failed because the tables have another number of lanes
// than the store has remembered, and remembers that one. The number is in the error, because the
// transaction's snapshot may be older than the change.
func (s *Store) lanesChanged(err error, f facts) (facts, bool) {
	if code := number(err); code != errCheckMySQL && code != errCheckMariaDB {
		return f, false
	}
	found := regexp.MustCompile("[`']" + s.cfg.Prefix + "lanes_(\\d+)[`']").FindStringSubmatch(err.Error())
	if found == nil {
		return f, false
	}
	n, _ := strconv.Atoi(found[1])
	if n < 1 || n > maxLanes || n == f.lanes {
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
func (s *Store) noRelay(ctx context.Context, q querier) error {
	var relay []byte
	live := false
	err := each(ctx, q, s.sql.liveRelay, nil, func() { live = true }, &relay)
	if err == nil && live {
		err = fmt.Errorf("%w: %q", store.ErrRelayLive, relay)
	}
	return err
}

// setLanes does it behind locks on all tables that are concerned. Without autocommit they are released by UNLOCK TABLES only.
func (s *Store) setLanes(ctx context.Context, conn *sql.Conn, n int) error {
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
	// First, because it is what an account may not be allowed to do.
	if _, err := conn.ExecContext(ctx, fill(withLanes(s.sql.freeLane, n), "{drop}", drop)); err != nil {
		return err
	}
	err = s.moveToLanes(ctx, conn, n)
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
		return fmt.Errorf("the events have moved, but the constraint on their lanes is missing; run it again: %w", err)
	}
	return nil
}

// withLanes puts the number of lanes into a statement that computes them.
func withLanes(statement string, n int) string { return fill(statement, "{modulus}", strconv.Itoa(n)) }

// moveToLanes moves all rows to their new lanes and makes the lanes new, in a transaction that is open.
//
// What a relay that died had in hand is spread over the lanes now, so all of them are as unclean as the worst was.
func (s *Store) moveToLanes(ctx context.Context, conn querier, n int) error {
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
