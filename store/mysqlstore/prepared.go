package mysqlstore

import (
	"context"
	"database/sql"
	"strings"
)

// Statements with arguments cost the driver two round trips, and the server names every placeholder in its answer to the first. The
// statements that a service uses all the time are therefore kept prepared: those for one event and for a hundred. A larger batch goes
// in hundreds; anything else is sent as it comes. The server keeps prepared statements per connection, so there are only a few.
const (
	hundred       = 100
	maxOnes       = 4
	maxHundreds   = 2
	one           = 1
	otherPoolText = "statement from different database"
)

// shape is what tells one insert from another: which columns are used, and how many rows there are.
type shape struct {
	used uint32
	rows int
}

// prepared returns the statement for a shape, or nil.
func (s *Store) prepared(sh shape) *sql.Stmt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inserts[sh]
}

// want notes that a statement of this shape is worth preparing. It cannot be prepared here: that takes a connection of the pool, and
// inside a transaction, waiting for another one might take for ever.
func (s *Store) want(sh shape) {
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

// prepareWanted prepares what was wanted. It is called where no connection is held. A server that refuses costs nothing but speed, and is
// not asked again.
func (s *Store) prepareWanted(ctx context.Context, f facts) {
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
			s.inserts[sh] = stmt // nil, if it was refused
		}
		s.mu.Unlock()
	}
}

// otherPool reports whether database/sql refused a statement without sending it, because the transaction is of another [sql.DB]. It
// has no variable for that.
func otherPool(err error) bool { return err != nil && strings.Contains(err.Error(), otherPoolText) }
