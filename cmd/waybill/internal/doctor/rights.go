package doctor

import (
	"context"
	"fmt"
	"strings"
)

// lacking are the rights that an account lacks.
type lacking struct {
	// grants are the statements that grant them.
	grants []string
	// texts name them.
	texts []string
	// reads means that it may read everything, and writes that it may write
	// something.
	reads, writes bool
}

// judge returns the finding about the rights of an account.
func (l *lacking) judge(p *patient, account string) Finding {
	const shown = 5
	what := strings.Join(l.texts[:min(len(l.texts), shown)], ", ")
	if more := len(l.texts) - shown; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	grant := strings.Join(l.grants, "; ")
	switch {
	case len(l.texts) == 0:
		return good("%s has the rights of a relay", account)
	case !l.reads:
		return fail(grant, "%s may not read the tables: it lacks %s", account, what)
	case !p.Enabled || !p.Relay.Enabled || p.CDC.Enabled:
		return good("%s may read the tables; no relay is enabled", account)
	case !l.writes:
		return warn(grant+"; or run serve with another account", "%s only reads: a relay with this account delivers nothing", account)
	}
	return fail(grant, "%s cannot be a relay: it lacks %s", account, what)
}

// postgresRights compares the rights of the role with those of a relay. The
// role is that of store.url; writers and consumers have roles of their own.
func postgresRights(ctx context.Context, p *patient) (Finding, error) {
	const query = `SELECT c.oid::regclass::text, r.name, has_table_privilege(c.oid, r.name), quote_ident(current_user)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r(name)
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = coalesce(nullif($1, ''), current_schema()) AND starts_with(c.relname, $2)
			AND (r.name = 'SELECT' OR c.relname <> $2 || 'migration')
		UNION ALL SELECT c.oid::regclass::text, 'USAGE', has_sequence_privilege(c.oid, 'USAGE'), quote_ident(current_user)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'S' AND n.nspname = coalesce(nullif($1, ''), current_schema()) AND c.relname = $2 || 'outbox_seq'
		ORDER BY 1, 2`
	rows, err := p.store.SQL.QueryContext(ctx, query, p.Store.Schema, p.Store.Prefix)
	if err != nil {
		return Finding{}, err
	}
	defer func() { _ = rows.Close() }()
	found, l := 0, lacking{reads: true}
	var role string
	for rows.Next() {
		var table, right string
		var has bool
		if err := rows.Scan(&table, &right, &has, &role); err != nil {
			return Finding{}, err
		}
		found++
		kind := ""
		if right == "USAGE" {
			kind = "SEQUENCE "
		}
		l.note(has, right, table, fmt.Sprintf("GRANT %s ON %s%s TO %s", right, kind, table, role))
	}
	switch {
	case rows.Err() != nil:
		return Finding{}, rows.Err()
	case found == 0:
		return unseen("the tables are missing"), nil
	}
	return l.judge(p, "the role "+role), nil
}

// note records whether the account has a right.
func (l *lacking) note(has bool, right, of, grant string) {
	if has {
		l.writes = l.writes || right != "SELECT" && right != "USAGE"
		return
	}
	l.reads = l.reads && right != "SELECT"
	l.texts, l.grants = append(l.texts, right+" on "+of), append(l.grants, grant)
}
