package mysqlstore

import (
	"context"
	"regexp"
	"strings"
)

// The server's status is free text, with a list of transactions in the middle:
//
//	LIST OF TRANSACTIONS FOR EACH SESSION:
//	---TRANSACTION 27, ACTIVE 1 sec starting index read
//	LOCK WAIT 2 lock struct(s), heap size 1128, 1 row lock(s)
//	MariaDB thread id 9, query id 23 127.0.0.1 waybill Updating
//	update t set n=5 where id=1
//	---TRANSACTION (0x7f29f0b59680), not started
//	0 lock struct(s), heap size 1128, 0 row lock(s)
//	--------
//	FILE I/O
//	--------
//
// The text of a statement may look like any of these lines. It comes after the
// lines that matter, and no statement text comes after the list: a running
// statement can add a transaction that does not exist, but cannot hide one.
const (
	statusListBegins = "\nLIST OF TRANSACTIONS FOR EACH SESSION:\n"
	statusListEnds   = "\n--------\nFILE I/O\n--------\n"
	// A status longer than 1 MiB has this line instead of the first
	// transactions.
	statusCut = "... truncated...\n"
)

var (
	statusTrx    = regexp.MustCompile(`^---TRANSACTION (\d+|\(\S+\)), (.*)$`)
	statusWrites = regexp.MustCompile(`\b[1-9]\d* lock struct\(s\)|undo log entries \d`)
)

// statusAnswer is the result of reading a status.
type statusAnswer int

const (
	statusUnknown statusAnswer = iota // some transactions may be missing
	// A transaction has committed but is not visible to others yet: it is
	// neither open nor ended. The next status resolves that.
	statusCommitting
	statusKnown
)

// statusWriters queries the server's status, which the server creates anew for
// every query.
func (s *backend) statusWriters(ctx context.Context) ([]string, statusAnswer, error) {
	conn, err := s.db.Conn(ctx) // the status does not name its server
	if err != nil {
		return nil, statusUnknown, err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	var kind, name, text string
	if err := each(ctx, conn, `SHOW ENGINE INNODB STATUS`, nil, nil, &kind, &name, &text); err != nil {
		return nil, statusUnknown, err
	}
	at, err := s.standing(ctx, conn)
	if err == nil {
		err = s.primaries.check(at, noLanes)
	}
	if err != nil {
		return nil, statusUnknown, err
	}
	open, answer := parseStatus(text)
	return open, answer, nil
}

// parseStatus returns the transactions that have written, or are about to
// write, by their names in innodb_trx.
func parseStatus(text string) (open []string, answer statusAnswer) {
	_, list, begins := strings.Cut(text, statusListBegins)
	end := strings.LastIndex("\n"+list, statusListEnds)
	if !begins || end < 0 || strings.HasPrefix(list, statusCut) {
		return nil, statusUnknown
	}
	answer = statusKnown
	var name, state string
	var writes bool
	done := func() {
		switch {
		case !writes || strings.HasPrefix(state, "not started"):
		case strings.HasPrefix(state, "COMMITTED"):
			answer = statusCommitting
		default:
			open = append(open, name)
		}
	}
	for line := range strings.Lines(("\n" + list)[:end]) {
		if found := statusTrx.FindStringSubmatch(strings.TrimSuffix(line, "\n")); found != nil {
			done()
			name, state, writes = found[1], found[2], false
			if strings.HasPrefix(name, "(") {
				name = "0" // it has no number yet, and innodb_trx shows none
			}
			continue
		}
		writes = writes || statusWrites.MatchString(line)
	}
	done()
	return open, answer
}
