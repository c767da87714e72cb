package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// lacking are the rights that an account lacks.
type lacking struct {
	// rights are those that lack, by table or sequence.
	rights map[string][]string
	// texts name them.
	texts []string
	// reads means that it may read everything, and writes that it may write
	// something.
	reads, writes bool
}

// judge returns the finding about the rights of a role.
func (l *lacking) judge(p *patient, role string) Finding {
	account := "the role " + role
	const shown = 5
	what := strings.Join(l.texts[:min(len(l.texts), shown)], ", ")
	if more := len(l.texts) - shown; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	grant := l.grants(role)
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
	found, l := 0, lacking{reads: true, rights: map[string][]string{}}
	var role string
	for rows.Next() {
		var table, right string
		var has bool
		if err := rows.Scan(&table, &right, &has, &role); err != nil {
			return Finding{}, err
		}
		found++
		l.note(has, right, table)
	}
	switch {
	case rows.Err() != nil:
		return Finding{}, rows.Err()
	case found == 0:
		return unseen("the tables are missing"), nil
	}
	return l.judge(p, role), nil
}

// note records whether the account has a right.
func (l *lacking) note(has bool, right, of string) {
	if has {
		l.writes = l.writes || right != "SELECT" && right != "USAGE"
		return
	}
	l.reads = l.reads && right != "SELECT"
	l.texts = append(l.texts, right+" on "+of)
	l.rights[of] = append(l.rights[of], right)
}

// grants returns the statements that grant what lacks: one for all tables that
// lack the same.
func (l *lacking) grants(role string) string {
	same := map[string][]string{}
	for of, rights := range l.rights {
		what := strings.Join(rights, ", ") + " ON "
		if rights[0] == "USAGE" {
			what += "SEQUENCE "
		}
		same[what] = append(same[what], of)
	}
	var statements []string
	for _, what := range slices.Sorted(maps.Keys(same)) {
		slices.Sort(same[what])
		statements = append(statements, "GRANT "+what+strings.Join(same[what], ", ")+" TO "+role)
	}
	return strings.Join(statements, "; ")
}
