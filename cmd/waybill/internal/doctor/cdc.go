package doctor

import (
	"context"
	"strings"
)

// cdcOff is the finding if a relay publishes the events.
const cdcOff = "cdc.enabled is off"

// cdcLag is the maximum number of bytes that a reader of PostgreSQL's log may
// lag behind.
const cdcLag = 1 << 30

// postgresCDC checks the requirements of change data capture, in the order of
// their setup.
func postgresCDC(ctx context.Context, p *patient) (Finding, error) {
	if !p.CDC.Enabled {
		return good(cdcOff), nil
	}
	db := p.store.SQL
	var level string
	if err := db.QueryRowContext(ctx, `SELECT current_setting('wal_level')`).Scan(&level); err != nil {
		return Finding{}, err
	}
	if level != "logical" {
		return fail("ALTER SYSTEM SET wal_level = 'logical'; then restart the server", "wal_level is %s: logical replication is not possible", level), nil
	}
	table := p.outboxTable()
	var published bool
	const publications = `SELECT EXISTS (SELECT FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
		WHERE p.pubinsert AND to_regclass(quote_ident(t.schemaname) || '.' || quote_ident(t.tablename)) = to_regclass($1))`
	if err := db.QueryRowContext(ctx, publications, table).Scan(&published); err != nil {
		return Finding{}, err
	}
	if !published {
		return fail("CREATE PUBLICATION waybill_cdc FOR TABLE "+table+" WITH (publish = 'insert')", "no publication contains the inserts into %s", table), nil
	}
	rows, err := db.QueryContext(ctx, `SELECT slot_name, active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint
		FROM pg_replication_slots WHERE slot_type = 'logical' AND database = current_database() ORDER BY slot_name`)
	if err != nil {
		return Finding{}, err
	}
	defer func() { _ = rows.Close() }()
	var reads, idle []string
	behind := int64(0)
	for rows.Next() {
		var name string
		var active bool
		var lag int64
		if err := rows.Scan(&name, &active, &lag); err != nil {
			return Finding{}, err
		}
		if active {
			reads, behind = append(reads, name), max(behind, lag)
		} else {
			idle = append(idle, name)
		}
	}
	if err := rows.Err(); err != nil {
		return Finding{}, err
	}
	const start = "start the reader, or check its log"
	switch {
	case len(reads) == 0 && len(idle) == 0:
		return fail(start, "this database has no logical replication slot: no reader has ever connected"), nil
	case len(reads) == 0:
		return fail(start, "no reader is connected to %s: events are not published", strings.Join(idle, ", ")), nil
	case behind > p.lag:
		return warn("check the reader's log", "the reader of %s lags %d MiB of log behind", strings.Join(reads, ", "), behind>>20), nil
	}
	return good("a reader is connected to %s and lags %d KiB of log behind", strings.Join(reads, ", "), behind>>10), nil
}

// outboxTable returns the quoted name of the outbox table.
func (p *patient) outboxTable() string {
	name := `"` + p.Store.Prefix + `outbox"`
	if p.Store.Schema != "" {
		name = `"` + p.Store.Schema + `".` + name
	}
	return name
}
