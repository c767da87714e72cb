package memstore

import (
	sqldriver "database/sql/driver"
	"fmt"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
)

// followedTx is an open transaction of a followed database. parts are what the
// stores have in it.
type followedTx struct {
	sqldriver.Tx
	conn   *followedConn
	parts  []*txn
	points []savepoint
}

// savepoint is a savepoint made by SQL text.
type savepoint struct {
	name  string
	marks map[*txn]mark // none: the part is younger
}

// join sets the part of the asking store.
func (x *followedTx) join(j *join) error {
	if x == nil {
		return fmt.Errorf("%w: the connection has no transaction", waybill.ErrNoTx)
	}
	for _, p := range x.parts {
		if p.tables == j.tables {
			j.txn = p
			return nil
		}
	}
	j.txn = newTxn(j.tables)
	x.parts = append(x.parts, j.txn)
	return nil
}

// Commit commits in the database first. A session of the store finds its part
// ended.
func (x *followedTx) Commit() error {
	err := x.Tx.Commit()
	x.end(func(t *txn) {
		if err == nil {
			t.commit()
		} else {
			t.abandon(!refused(err))
		}
	})
	return err
}

func (x *followedTx) Rollback() error {
	err := x.Tx.Rollback()
	x.end(func(t *txn) { t.rollback() })
	return err
}

func (x *followedTx) end(fn func(*txn)) {
	x.conn.tx = nil
	for _, p := range x.parts {
		fn(p)
	}
}

// ran follows a statement that has succeeded. It fails if the events cannot
// follow the database.
func (x *followedTx) ran(query string) error {
	verb, name := savepointOf(query)
	if verb == "" {
		return nil
	}
	if verb == "SAVEPOINT" {
		marks := make(map[*txn]mark, len(x.parts))
		for _, p := range x.parts {
			marks[p] = p.mark()
		}
		x.points = append(x.points, savepoint{name, marks})
		return nil
	}
	last := len(x.points) - 1
	for last >= 0 && x.points[last].name != name {
		last--
	}
	if last < 0 {
		return fmt.Errorf("memstore: %s: the store has not seen the SAVEPOINT: run it as a statement of its own", query)
	}
	if verb == "RELEASE" {
		x.points = slices.Delete(x.points, last, len(x.points))
		return nil
	}
	x.points = slices.Delete(x.points, last+1, len(x.points))
	for _, p := range x.parts {
		p.truncate(x.points[last].marks[p])
	}
	return nil
}

// savepointOf returns the verb, SAVEPOINT, RELEASE or ROLLBACK, and the name of
// a statement about a savepoint, or "".
func savepointOf(query string) (verb, name string) {
	words := strings.Fields(strings.TrimRight(query, "; \t\r\n"))
	if len(words) < 2 || len(words) > 5 {
		return "", ""
	}
	verb, name = strings.ToUpper(words[0]), savepointName(words[len(words)-1])
	between := strings.ToUpper(strings.Join(words[1:len(words)-1], " "))
	var known []string
	switch verb {
	case "SAVEPOINT":
		known = []string{""}
	case "RELEASE":
		known = []string{"", "SAVEPOINT"}
	case "ROLLBACK":
		known = []string{"TO", "TO SAVEPOINT", "WORK TO", "WORK TO SAVEPOINT", "TRANSACTION TO", "TRANSACTION TO SAVEPOINT"}
	}
	if !slices.Contains(known, between) {
		return "", ""
	}
	return verb, name
}

// savepointName is equal for names that are equal to the database: they are
// lower case unless they have quotes.
func savepointName(word string) string {
	if bare := strings.Trim(word, "\"`[]"); bare != word {
		return bare
	}
	return strings.ToLower(word)
}
