package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

func postgresChecks() []Check {
	pg := connect.Postgres
	return []Check{
		{Name: "primary", For: pg, Looks: "`pg_is_in_recovery()`, `transaction_read_only`", Wants: "a writable server", run: primary},
		{Name: "synchronous_commit", For: pg, Looks: "`synchronous_commit` of this connection and of every role", Wants: "not off; with synchronous standbys, not local", run: synchronousCommit},
		{Name: "crash safety", For: pg, Looks: "`fsync`, `full_page_writes`", Wants: "on", run: crashSafety},
		{Name: "rights", For: pg, Looks: "the rights of the role on the tables and the sequence", Wants: "those of a relay; those of a reader if no relay is enabled", run: postgresRights},
		{Name: "sequence cache", For: pg, Looks: "the sequence of the outbox", Wants: "CACHE 1, which the order of events requires", run: sequenceCache},
		{Name: "old transactions", For: pg, Looks: "`pg_stat_activity` of this database", Wants: "no transaction older than 5 min, which vacuum would wait for", run: oldTransactions},
		{Name: "replication slots", For: pg, Looks: "`pg_replication_slots`", Wants: "no slot without a reader: such slots keep WAL until the disk is full", run: slots},
		{Name: "pooler", For: pg, Looks: "a pooler between `store.url` and the server; `store.listen-url`", Wants: "session mode; in transaction mode, a query mode without prepared statements and an address for LISTEN", run: pooler},
		{Name: "cdc", For: pg, Looks: "`wal_level`, publications, logical slots", Wants: "with `cdc.enabled`: a publication of the outbox, and a connected reader", run: postgresCDC},
	}
}

func primary(ctx context.Context, p *patient) (Finding, error) {
	var replica bool
	var readOnly string
	const query = `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')`
	if err := p.store.SQL.QueryRowContext(ctx, query).Scan(&replica, &readOnly); err != nil {
		return Finding{}, err
	}
	switch {
	case replica:
		return fail("set store.url to the primary; with several hosts, add target_session_attrs=read-write", "the server is a replica"), nil
	case readOnly == "on":
		return fail("ALTER ROLE CURRENT_USER IN DATABASE "+p.database(ctx)+" SET default_transaction_read_only = off", "transactions are read only"), nil
	}
	return good("the server is a writable primary"), nil
}

// database returns the quoted name of the current database.
func (p *patient) database(ctx context.Context) string {
	var name string
	if p.store.SQL.QueryRowContext(ctx, `SELECT quote_ident(current_database())`).Scan(&name) != nil {
		return "…"
	}
	return name
}

func synchronousCommit(ctx context.Context, p *patient) (Finding, error) {
	var value, source, role string
	var standbys bool
	const query = `SELECT setting, source, current_setting('synchronous_standby_names') <> '', quote_ident(current_user) FROM pg_settings WHERE name = 'synchronous_commit'`
	if err := p.store.SQL.QueryRowContext(ctx, query).Scan(&value, &source, &standbys, &role); err != nil {
		return Finding{}, err
	}
	advice := fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET synchronous_commit = on", role, p.database(ctx))
	if source == "client" {
		advice = "remove synchronous_commit from store.url and from PGOPTIONS"
	}
	switch {
	case value == "off":
		return fail(advice, "synchronous_commit is off: a crash rolls back transactions whose events were delivered"), nil
	case value == "local" && standbys:
		return warn(advice, "synchronous_commit is local although there are synchronous standbys: a failover rolls back transactions whose events were delivered"), nil
	}
	return p.otherRoles(ctx, value, standbys)
}

// otherRoles checks the settings of all roles: the writers are other programs
// with their own roles. The advice changes the entry that was found.
func (p *patient) otherRoles(ctx context.Context, own string, standbys bool) (Finding, error) {
	const query = `SELECT coalesce(quote_ident(r.rolname), 'ALL'), coalesce(' IN DATABASE ' || quote_ident(d.datname), ''), lower(split_part(c.entry, '=', 2))
		FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS c(entry) LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
		WHERE (s.setdatabase = 0 OR d.datname = current_database()) AND lower(split_part(c.entry, '=', 1)) = 'synchronous_commit'
			AND (lower(split_part(c.entry, '=', 2)) IN ('off', 'false', 'no', '0') OR $1 AND lower(split_part(c.entry, '=', 2)) = 'local') LIMIT 1`
	var role, database, value string
	err := p.store.SQL.QueryRowContext(ctx, query, standbys).Scan(&role, &database, &value)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return good("synchronous_commit is %s", own), nil
	case err != nil:
		return Finding{}, err
	}
	return warn(fmt.Sprintf("ALTER ROLE %s%s SET synchronous_commit = on", role, database),
		"synchronous_commit is %s for the role %s: if the role writes events, a crash or a failover rolls back transactions whose events were delivered", value, role), nil
}

func crashSafety(ctx context.Context, p *patient) (Finding, error) {
	const query = `SELECT name, source FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name LIMIT 1`
	var name, source string
	err := p.store.SQL.QueryRowContext(ctx, query).Scan(&name, &source)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return good("fsync and full_page_writes are on"), nil
	case err != nil:
		return Finding{}, err
	}
	advice := "ALTER SYSTEM SET " + name + " = on; SELECT pg_reload_conf()"
	if source == "command line" {
		advice = "start the server without -c " + name + "=off"
	}
	return fail(advice, "%s is off: a crash may destroy the database", name), nil
}

func is(n int) string {
	if n == 1 {
		return " is"
	}
	return " are"
}

// texts reads rows of one column and closes them.
func texts(rows *sql.Rows) ([]string, error) {
	defer func() { _ = rows.Close() }()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

func sequenceCache(ctx context.Context, p *patient) (Finding, error) {
	name := `"` + p.Store.Prefix + `outbox_seq"`
	if p.Store.Schema != "" {
		name = `"` + p.Store.Schema + `".` + name
	}
	var cache int64
	err := p.store.SQL.QueryRowContext(ctx, `SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass($1)`, name).Scan(&cache)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return unseen("the sequence does not exist yet"), nil
	case err != nil:
		return Finding{}, err
	case cache != 1:
		return fail("ALTER SEQUENCE "+name+" CACHE 1", "the outbox's sequence has CACHE %d: connections with a cached block use old numbers, and the order of events is lost; "+
			"restart the writers after the change", cache), nil
	}
	return good("CACHE 1"), nil
}

func oldTransactions(ctx context.Context, p *patient) (Finding, error) {
	const query = `SELECT pid, coalesce(quote_ident(usename), '?'), coalesce(state, '?'), extract(epoch FROM clock_timestamp() - xact_start)::float8,
		count(*) OVER () FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - $1 * interval '1 second' ORDER BY xact_start LIMIT 1`
	var pid, n int64
	var user, state string
	var age float64
	err := p.store.SQL.QueryRowContext(ctx, query, p.long.Seconds()).Scan(&pid, &user, &state, &age, &n)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return good("no transaction is older than %s", settings.FormatDuration(p.long)), nil
	case err != nil:
		return Finding{}, err
	}
	return warn(fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid),
		"%d old transactions: the oldest, of %s, began %s ago and is %s; vacuum keeps all rows that it can see. idle_in_transaction_session_timeout ends such transactions", n, user,
		settings.FormatDuration(time.Duration(age*float64(time.Second)).Round(time.Second)), state), nil
}

func slots(ctx context.Context, p *patient) (Finding, error) {
	rows, err := p.store.SQL.QueryContext(ctx, `SELECT slot_name FROM pg_replication_slots WHERE NOT active AND NOT temporary
		AND (restart_lsn IS NOT NULL OR xmin IS NOT NULL OR catalog_xmin IS NOT NULL) ORDER BY slot_name`)
	if err != nil {
		return Finding{}, err
	}
	idle, err := texts(rows)
	if err != nil {
		return Finding{}, err
	}
	if len(idle) > 0 {
		return warn("SELECT pg_drop_replication_slot('"+strings.ReplaceAll(idle[0], "'", "''")+"')",
			"no reader is connected to slot %s: the retained WAL fills the disk. Keep the slot if its reader will return", strings.Join(idle, ", ")), nil
	}
	return good("no idle slots"), nil
}
