package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// pooled is what lies between an address and its server.
type pooled int

const (
	direct pooled = iota
	// sessions: a pooler, and no sign that it gives a session to several clients.
	sessions
	// transactions: a pooler that gives a session to several clients, one transaction each.
	transactions
)

// backend returns the number of the server's process that runs a statement. The statement is not
// prepared.
func backend(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (pid uint32, err error) {
	err = q.QueryRow(ctx, `SELECT pg_backend_pid()::bigint`, pgx.QueryExecModeExec).Scan(&pid)
	return pid, err
}

// sharedTries is how often two connections are asked whether they share a session: other clients
// may take it in between.
const sharedTries = 20

// lookForPooler looks at what lies behind an address. A server tells each connection the number
// of its own process, a pooler a number of its own. Two connections that are open at the same
// time and have the same process share it: that is transaction mode.
func lookForPooler(ctx context.Context, a, b *pgx.Conn) (pooled, error) {
	pid, err := backend(ctx, a)
	if err != nil || pid == a.PgConn().PID() {
		return direct, err
	}
	for range sharedTries {
		if pid, err = backend(ctx, a); err != nil {
			return direct, err
		}
		other, err := backend(ctx, b)
		if err != nil {
			return direct, err
		}
		if other == pid {
			return transactions, nil
		}
	}
	return sessions, nil
}

// forgetsStatements reports whether a statement that one connection has prepared is unknown to
// the session that runs its next transaction.
func forgetsStatements(ctx context.Context, a, b *pgx.Conn) (bool, error) {
	const name = "waybill_doctor"
	if _, err := a.PgConn().Prepare(ctx, name, `SELECT 1`, nil); err != nil {
		return false, err
	}
	// The session that has it is busy now, so that the next transaction of a runs in another.
	tx, err := b.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := backend(ctx, tx); err != nil {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, time.Second) // a pool of one session does not have another
	defer cancel()
	result := a.PgConn().ExecPrepared(within, name, nil, nil, nil).Read()
	var refused *pgconn.PgError
	const unknownStatement = "26000"
	return errors.As(result.Err, &refused) && refused.Code == unknownStatement, nil
}

func pooler(ctx context.Context, p *patient) (Finding, error) {
	between, forgets, err := p.between(ctx, p.Store.URL)
	if err != nil {
		return Finding{}, err
	}
	switch between {
	case direct:
		return good("none: connections are the server's own"), nil
	case sessions:
		return good("store.url leads through a pooler, which seems to keep sessions"), nil
	case transactions:
	}
	if forgets {
		return fail("add default_query_exec_mode=exec to store.url, or set max_prepared_statements of PgBouncer 1.21 or later",
			"store.url leads through a pooler in transaction mode, which loses prepared statements"), nil
	}
	if !p.Enabled || !p.Relay.Enabled {
		return good("store.url leads through a pooler in transaction mode; no relay listens"), nil
	}
	const advice = "set store.listen to the address of the server itself, or of a pooler in session mode"
	poll := settings.FormatDuration(p.Relay.Poll)
	if p.Store.Listen.Reveal() == "" {
		return warn(advice, "store.url leads through a pooler in transaction mode, and store.listen is not set: "+
			"commits of other processes do not wake the relay, which polls every %s", poll), nil
	}
	switch between, _, err := p.between(ctx, p.Store.Listen); {
	case err != nil:
		return fail(advice, "store.url leads through a pooler in transaction mode, and store.listen does not answer: %s", err), nil
	case between == transactions:
		return warn(advice, "store.listen leads through a pooler in transaction mode, too: commits of other processes do not wake the relay, which polls every %s", poll), nil
	}
	return good("store.url leads through a pooler in transaction mode, and store.listen past it"), nil
}

// between looks at an address, and whether statements are forgotten behind it that its mode
// prepares.
func (p *patient) between(ctx context.Context, address settings.Secret) (kind pooled, forgets bool, err error) {
	cfg, err := pgx.ParseConfig(address.Reveal())
	if err != nil {
		return direct, false, errors.New("PostgreSQL's driver cannot read it") // its error may quote the address
	}
	var both [2]*pgx.Conn
	for i := range both {
		if both[i], err = pgx.ConnectConfig(ctx, cfg); err != nil {
			return direct, false, err
		}
		defer func() { _ = both[i].Close(context.WithoutCancel(ctx)) }()
	}
	kind, err = lookForPooler(ctx, both[0], both[1])
	prepares := cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement || cfg.DefaultQueryExecMode == pgx.QueryExecModeDescribeExec
	if err != nil || kind != transactions || !prepares {
		return kind, false, err
	}
	forgets, err = forgetsStatements(ctx, both[0], both[1])
	return kind, forgets, err
}
