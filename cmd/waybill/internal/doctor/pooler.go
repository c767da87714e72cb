package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// pooled is the kind of connection between an address and its server.
type pooled int

const (
	direct pooled = iota
	// sessions: a pooler without signs of shared sessions.
	sessions
	// transactions: a pooler that assigns a session to several clients, one
	// transaction each.
	transactions
)

// backend returns the process number of the server that runs a statement. The
// statement is not prepared.
func backend(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (pid uint32, err error) {
	err = q.QueryRow(ctx, `SELECT pg_backend_pid()::bigint`, pgx.QueryExecModeExec).Scan(&pid)
	return pid, err
}

// sharedTries is the number of checks whether two connections share a session:
// other clients may take the session in between.
const sharedTries = 20

// detectPooler detects a pooler behind an address. A server reports its own
// process number to each connection, a pooler another number. Two open
// connections with the same process share it: that is transaction mode.
func detectPooler(ctx context.Context, a, b *pgx.Conn) (pooled, error) {
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

// forgetsStatements reports whether a statement that one connection has
// prepared is unknown to the session of its next transaction.
func forgetsStatements(ctx context.Context, a, b *pgx.Conn) (bool, error) {
	const name = "waybill_doctor"
	if _, err := a.PgConn().Prepare(ctx, name, `SELECT 1`, nil); err != nil {
		return false, err
	}
	// The session with the statement is busy now, so the next transaction of a
	// runs in another session.
	tx, err := b.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := backend(ctx, tx); err != nil {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, time.Second) // a pool of one session has no other
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
		return good("no pooler: connections go to the server"), nil
	case sessions:
		return good("store.url leads through a pooler in session mode, as far as can be seen"), nil
	case transactions:
	}
	if forgets {
		return fail("add default_query_exec_mode=exec to store.url, or set max_prepared_statements of PgBouncer 1.21 or later",
			"store.url leads through a pooler in transaction mode, which loses prepared statements"), nil
	}
	if !p.Enabled || !p.Relay.Enabled {
		return good("store.url leads through a pooler in transaction mode; no relay listens"), nil
	}
	const advice = "set store.listen-url to the address of the server, or of a pooler in session mode"
	poll := settings.FormatDuration(p.Relay.PollInterval)
	if p.Store.ListenURL.Reveal() == "" {
		return warn(advice, "store.url leads through a pooler in transaction mode, and store.listen-url is not set: "+
			"commits of other processes do not wake the relay, which polls every %s", poll), nil
	}
	switch between, _, err := p.between(ctx, p.Store.ListenURL); {
	case err != nil:
		return fail(advice, "store.url leads through a pooler in transaction mode, and store.listen-url does not answer: %s", err), nil
	case between == transactions:
		return warn(advice, "store.listen-url leads through a pooler in transaction mode, too: commits of other processes do not wake the relay, which polls every %s", poll), nil
	}
	return good("store.url leads through a pooler in transaction mode, and store.listen-url leads to the server"), nil
}

// between inspects an address, and reports whether the pooler loses statements
// that the connection's mode prepares.
func (p *patient) between(ctx context.Context, address settings.Secret) (kind pooled, forgets bool, err error) {
	cfg, err := pgx.ParseConfig(address.Reveal())
	if err != nil {
		return direct, false, errors.New("rejected by PostgreSQL's driver") // err may quote the address
	}
	var both [2]*pgx.Conn
	for i := range both {
		if both[i], err = pgx.ConnectConfig(ctx, cfg); err != nil {
			return direct, false, err
		}
		defer func() { _ = both[i].Close(context.WithoutCancel(ctx)) }()
	}
	kind, err = detectPooler(ctx, both[0], both[1])
	prepares := cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement || cfg.DefaultQueryExecMode == pgx.QueryExecModeDescribeExec
	if err != nil || kind != transactions || !prepares {
		return kind, false, err
	}
	forgets, err = forgetsStatements(ctx, both[0], both[1])
	return kind, forgets, err
}
