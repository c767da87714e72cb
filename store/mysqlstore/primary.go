package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// A replica that is promoted may lack acquisitions of lanes and events that the
// former primary had committed: seqs and epochs that relays have published
// under would be issued again. So the first relay on a new primary raises the
// epochs of all lanes, as after a restoration, and every relay refuses rows of
// a primary under which it has not acquired their lane.
//
// The names of servers have no order. The tables therefore count the changes of
// the primary that relays have seen: the setting "primary" has the term and the
// name of its server, and is replicated like every other row. A server that
// finds its own name there is the primary of that term; any other server was
// promoted, and begins a term. A relay never goes back to an earlier term: that
// server is a former primary.

// serverName identifies the server. In MySQL every server has a UUID of its
// own. MariaDB has none: servers that replicate from each other have different
// ids, and the nodes of a Galera cluster may share one, but are on different
// hosts or ports. The comments are code for one of the two.
const serverName = `CAST(/*M! CONCAT_WS('/', @@server_id, @@hostname, @@port) */ /*!80001 @@server_uuid */ AS BINARY)`

// standingColumn is a standing as one text: the name of the server, and the
// setting. Primary key of setting.
const standingColumn = `CONCAT(` + serverName + `, ' ', COALESCE((SELECT value FROM {setting} WHERE name = 'primary'), ''))`

// standing is a server, and the row of its tables about the primary.
type standing struct {
	server string
	// term is 0 if no relay has recorded a primary.
	term    int64
	primary string
}

// scan parses the text of standingColumn.
func (s *standing) scan(text string) error {
	parts := strings.SplitN(text, " ", 3)
	*s = standing{server: parts[0]}
	if len(parts) < 3 {
		return nil
	}
	var err error
	if s.term, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return fmt.Errorf("the setting primary is invalid: %w", err)
	}
	s.primary = parts[2]
	return nil
}

// next returns the standing with which a relay that has last seen another one
// works on the server, and by how many failovers the epochs must be raised.
func (s standing) next(seen standing) (_ standing, raise int64, err error) {
	switch {
	case s.server != s.primary:
		s.term, raise = max(s.term, seen.term)+1, max(s.term, seen.term)+1-s.term
		if s.term == 1 {
			raise = 0 // the first relay of all: no epoch was issued elsewhere
		}
		s.primary = s.server
	case s.term < seen.term:
		err = errFormerPrimary(s, seen)
	case s.term == seen.term && s.server != seen.server:
		// Both were promoted from the same primary, and may have issued the
		// same epochs. The relay has left the other one.
		s.term, raise = s.term+1, 1
	}
	return s, raise, err
}

// primaries is what a store knows of the primary.
type primaries struct {
	mu sync.Mutex
	// seen is the standing of the last heartbeat.
	seen standing
	// leased has for each lane the term in which it was last acquired.
	leased map[int]int64
}

func (p *primaries) latest() standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// see takes the standing of a heartbeat.
func (p *primaries) see(s standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.term >= p.seen.term {
		p.seen = s
	}
}

// noLanes are the lanes of a read of no lane in particular.
func noLanes(func(int) bool) {}

// lanesOfRows are the lanes of rows.
func lanesOfRows(rows []store.Row) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range rows {
			if !yield(rows[i].Lane) {
				return
			}
		}
	}
}

// check returns an error unless the standing is that of the last heartbeat, and
// the lanes that were read were acquired in its term. Stores without a
// heartbeat read everything.
func (p *primaries) check(s standing, lanes iter.Seq[int]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen.term == 0 {
		return nil
	}
	if s != p.seen {
		return errChanged(s, p.seen)
	}
	for lane := range lanes {
		lane %= sqlstore.MaxLanes
		if leased := p.leased[lane]; leased != 0 && leased != s.term {
			return fmt.Errorf("the database has failed over (term %d follows %d) since lane %d was acquired", s.term, leased, lane)
		}
	}
	return nil
}

// acquired takes the term in which lanes were acquired.
func (p *primaries) acquired(leases []driver.Lease, term int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leased == nil {
		p.leased = make(map[int]int64)
	}
	for _, l := range leases {
		p.leased[l.Lane] = term
	}
}

func errChanged(s, seen standing) error {
	if s.server == s.primary && s.term < seen.term {
		return errFormerPrimary(s, seen)
	}
	return fmt.Errorf("the database has failed over (server %s follows %s) since the last heartbeat", s.server, seen.server)
}

func errFormerPrimary(s, seen standing) error {
	return fmt.Errorf("the server %s is a former primary: it is in term %d, and server %s in term %d has been seen; "+
		"end it, or connect to its successor", s.server, s.term, seen.server, seen.term)
}

// standing returns the standing of the server that answers.
func (s *backend) standing(ctx context.Context, q querier) (at standing, err error) {
	var text string
	if err := each(ctx, q, s.sql.standing, nil, nil, &text); err != nil {
		return at, err
	}
	return at, at.scan(text)
}

// beat compares the server of a heartbeat, over whose connection it asks, with
// the last one. Its error means that the heartbeat does not count.
func (s *backend) beat(ctx context.Context, conn querier) error {
	at, err := s.standing(ctx, conn)
	if err != nil {
		return s.explain(err)
	}
	seen := s.primaries.latest()
	if at == seen {
		return nil
	}
	adopted, err := s.adopt(ctx, seen)
	if err != nil {
		return err
	}
	if adopted == seen { // only the heartbeat has reached another server
		return s.explain(errChanged(at, seen))
	}
	at = adopted
	s.primaries.see(at)
	if seen.term == 0 {
		return nil // no lane was acquired on another server
	}
	return fmt.Errorf("mysqlstore: the database has failed over (server %s in term %d follows %s in term %d): leases from before the failover are void",
		at.server, at.term, seen.server, seen.term)
}

// adopt makes the server that answers the primary of its tables. The relay that
// comes first raises the epochs.
func (s *backend) adopt(ctx context.Context, seen standing) (at standing, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if err := s.lockNodes(ctx, tx); err != nil {
			return err
		}
		was, err := s.standing(ctx, tx)
		if err != nil {
			return err
		}
		var raise int64
		if at, raise, err = was.next(seen); err != nil || at == was {
			return err
		}
		value := strconv.FormatInt(at.term, 10) + " " + at.primary
		if _, err := tx.ExecContext(ctx, s.sql.setSetting, "primary", []byte(value), []byte(value)); err != nil || raise == 0 {
			return err
		}
		return s.raiseLanes(ctx, tx, raise*driver.RestoreEpochs)
	})
	return at, err
}

// raiseLanes releases all lanes, with epochs that were never issued.
func (s *backend) raiseLanes(ctx context.Context, tx querier, by int64) error {
	_, err := tx.ExecContext(ctx, s.sql.raiseAll, by)
	return errors.Join(err, s.raiseHighest(ctx, tx, by))
}
