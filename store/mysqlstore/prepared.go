package mysqlstore

import (
	"context"
	"database/sql"
	"strings"
)

// A statement with arguments costs the driver two round trips, and the server
// describes every placeholder in its response to the first. The store therefore
// keeps frequent statements prepared: the inserts of one event and of a
// hundred. A larger batch is sent in hundreds; all other inserts are sent
// unprepared. The server keeps prepared statements per connection, so the store
// keeps only a few.
const (
	hundred       = 100
	maxOnes       = 4
	maxHundreds   = 2
	one           = 1
	otherPoolText = "statement from different database"
)

// shape distinguishes inserts: the used columns and the number of rows.
type shape struct {
	used uint32
	rows int
}

// prepared returns the prepared statement for a shape, or nil.
func (s *backend) prepared(sh shape) *sql.Stmt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inserts[sh]
}

// want records that a statement of this shape is worth preparing. It cannot
// prepare the statement itself: that takes a connection of the pool, and
// waiting for another connection inside a transaction might never end.
func (s *backend) want(sh shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := map[int]int{one: maxOnes, hundred: maxHundreds}[sh.rows]
	for _, known := range []map[shape]*sql.Stmt{s.inserts, s.wanted} {
		for other := range known {
			if other == sh {
				return
			}
			if other.rows == sh.rows {
				room--
			}
		}
	}
	if room > 0 {
		s.wanted[sh] = nil
	}
}

// prepareWanted prepares the wanted statements. The caller must not hold a
// connection. If the server refuses, the insert stays unprepared, and the store
// does not try again.
func (s *backend) prepareWanted(ctx context.Context, f facts) {
	s.mu.Lock()
	wanted := s.wanted
	if len(wanted) == 0 {
		s.mu.Unlock()
		return
	}
	s.wanted = make(map[shape]*sql.Stmt)
	s.mu.Unlock()
	for sh := range wanted {
		stmt, err := s.db.PrepareContext(ctx, s.insertText(f, sh, s.tailOf(&batch{}))) //nolint:sqlclosecheck // kept for as long as the store
		s.mu.Lock()
		if err == nil || number(err) != 0 {
			s.inserts[sh] = stmt // nil if the server refused
		}
		s.mu.Unlock()
	}
}

// otherPool reports whether database/sql refused a statement without sending
// it, because the transaction belongs to another [sql.DB]. database/sql exports
// no error value for that.
func otherPool(err error) bool { return err != nil && strings.Contains(err.Error(), otherPoolText) }
