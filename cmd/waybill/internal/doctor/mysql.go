package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

func mysqlChecks() []Check {
	my := connect.MySQL
	return []Check{
		{Name: "writable", For: my, Looks: "`read_only`", Wants: "off; it is on for replicas", run: writable},
		{Name: "innodb durability", For: my, Looks: "`innodb_flush_log_at_trx_commit`", Wants: "1", run: flushLog},
		{Name: "binary log", For: my, Looks: "`log_bin`, `sync_binlog`", Wants: "1, with a binary log", run: binaryLog},
		{
			Name: "galera", For: my, Looks: "`wsrep_on`, `wsrep_sync_wait`, `store.one-node`",
			Wants: "on a node of Galera: `store.one-node`, and 7", run: galera,
		},
		{Name: "engine", For: my, Looks: "the engines of the tables", Wants: "InnoDB; other engines have no transactions", run: engines},
		{Name: "privileges", For: my, Looks: "`SHOW GRANTS`", Wants: "PROCESS, which a relay needs to see open transactions", run: privileges},
		{Name: "procedures", For: my, Looks: "the right to call the procedures of the tables", Wants: "all of them, if a relay is enabled", run: mysqlProcedures},
		{Name: "old transactions", For: my, Looks: "`information_schema.innodb_trx`", Wants: "no transaction older than 5 min, which purge would wait for", run: oldMySQLTransactions},
		{Name: "cdc", For: my, Looks: "`log_bin`, `binlog_format`, `binlog_row_image`", Wants: "with `cdc.enabled`: a binary log, ROW and FULL", run: mysqlCDC},
	}
}

// variable reads a variable of the server.
func (p *patient) variable(ctx context.Context, name string) (string, error) {
	var value string
	err := p.store.SQL.QueryRowContext(ctx, "SELECT @@GLOBAL."+name).Scan(&value)
	return value, err
}

func writable(ctx context.Context, p *patient) (Finding, error) {
	value, err := p.variable(ctx, "read_only")
	if err != nil {
		return Finding{}, err
	}
	if value != "0" {
		return fail("SET GLOBAL read_only = 0", "the server is read only; if it is a replica, set store.url to its primary"), nil
	}
	return good("the server is writable"), nil
}

func flushLog(ctx context.Context, p *patient) (Finding, error) {
	value, err := p.variable(ctx, "innodb_flush_log_at_trx_commit")
	if err != nil {
		return Finding{}, err
	}
	if value != "1" && value != "3" { // MariaDB's 3 includes the guarantees of 1
		return fail("SET GLOBAL innodb_flush_log_at_trx_commit = 1",
			"innodb_flush_log_at_trx_commit is %s: a crash rolls back transactions whose events were delivered. Change the server's configuration file, too", value), nil
	}
	return good("innodb_flush_log_at_trx_commit is %s", value), nil
}

func binaryLog(ctx context.Context, p *patient) (Finding, error) {
	on, err := p.variable(ctx, "log_bin")
	if err != nil {
		return Finding{}, err
	}
	if on == "0" {
		return good("no binary log"), nil
	}
	value, err := p.variable(ctx, "sync_binlog")
	if err != nil {
		return Finding{}, err
	}
	if value != "1" {
		return warn("SET GLOBAL sync_binlog = 1", "sync_binlog is %s: after a crash, replicas may lack delivered events. Change the server's configuration file, too", value), nil
	}
	return good("sync_binlog is 1"), nil
}

// syncWait is the wsrep_sync_wait with which reads, UPDATE, DELETE and INSERT
// wait until the node has applied what the cluster has.
const syncWait = 7

// galera checks a node of a Galera cluster: the variables of this connection,
// which store.url can set.
func galera(ctx context.Context, p *patient) (Finding, error) {
	rows, err := p.store.SQL.QueryContext(ctx, "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_provider', 'wsrep_sync_wait')")
	if err != nil {
		return Finding{}, err
	}
	defer rows.Close()
	values := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return Finding{}, err
		}
		values[name] = value
	}
	if err := rows.Err(); err != nil {
		return Finding{}, err
	}
	if provider := values["wsrep_provider"]; values["wsrep_on"] != "ON" || provider == "" || provider == "none" {
		return good("the server is not a node of a Galera cluster"), nil
	}
	if !p.Store.OneNode {
		return fail("set store.one-node to true, and connect all relays and writers to one node",
			"the server is a node of a Galera cluster, whose nodes do not share row locks: a relay refuses it"), nil
	}
	if n, err := strconv.Atoi(values["wsrep_sync_wait"]); err != nil || n&syncWait != syncWait {
		return warn("SET GLOBAL wsrep_sync_wait = 7",
			"wsrep_sync_wait is %s: after a failover the next node answers before it has applied what the cluster has committed. "+
				"Change the servers' configuration files, too, and reconnect the clients", values["wsrep_sync_wait"]), nil
	}
	return good("all clients use one node, and the next one applies what it has before it answers"), nil
}

func engines(ctx context.Context, p *patient) (Finding, error) {
	rows, err := p.store.SQL.QueryContext(ctx, `SELECT CONCAT('`+"`', table_schema, '`.`', table_name, '`"+`') FROM information_schema.tables
		WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND LEFT(table_name, ?) = ? AND table_type = 'BASE TABLE' AND engine <> 'InnoDB' ORDER BY table_name`,
		p.Store.Schema, len(p.Store.Prefix), p.Store.Prefix)
	if err != nil {
		return Finding{}, err
	}
	odd, err := texts(rows)
	if err != nil {
		return Finding{}, err
	}
	if len(odd) > 0 {
		return fail("ALTER TABLE "+odd[0]+" ENGINE = InnoDB", "%s not InnoDB: no transactions", strings.Join(odd, ", ")+is(len(odd))), nil
	}
	return good("all tables are InnoDB"), nil
}

func privileges(ctx context.Context, p *patient) (Finding, error) {
	rows, err := p.store.SQL.QueryContext(ctx, "SHOW GRANTS")
	if err != nil {
		return Finding{}, err
	}
	grants, err := texts(rows)
	if err != nil {
		return Finding{}, err
	}
	for _, g := range grants {
		what, rest, _ := strings.Cut(strings.TrimPrefix(g, "GRANT "), " ON ")
		if strings.HasPrefix(rest, "*.*") && (strings.Contains(what, "PROCESS") || what == "ALL PRIVILEGES") {
			return good("PROCESS is granted"), nil
		}
	}
	var user string
	if err := p.store.SQL.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&user); err != nil {
		return Finding{}, err
	}
	name, host, _ := strings.Cut(user, "@")
	return fail(fmt.Sprintf("GRANT PROCESS ON *.* TO '%s'@'%s'", name, host), "the account cannot see other transactions (PROCESS): a relay cannot see transactions that may still commit"), nil
}

func oldMySQLTransactions(ctx context.Context, p *patient) (Finding, error) {
	const query = `SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()), (SELECT COUNT(*) FROM information_schema.innodb_trx
		WHERE TIMESTAMPDIFF(SECOND, trx_started, NOW()) >= ?) FROM information_schema.innodb_trx
		WHERE TIMESTAMPDIFF(SECOND, trx_started, NOW()) >= ? AND trx_mysql_thread_id NOT IN (0, CONNECTION_ID()) ORDER BY trx_started LIMIT 1`
	limit := int64(p.long / time.Second)
	var thread, age, n int64
	err := p.store.SQL.QueryRowContext(ctx, query, limit, limit).Scan(&thread, &age, &n)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return good("no transaction is older than %s", settings.FormatDuration(p.long)), nil
	case err != nil:
		return Finding{}, err
	}
	return warn(fmt.Sprintf("KILL %d", thread), "%d old transactions: the oldest began %s ago; row versions that it can see are not purged", n,
		settings.FormatDuration(time.Duration(age)*time.Second)), nil
}

// mysqlCDC checks the requirements of a reader of the binary log.
func mysqlCDC(ctx context.Context, p *patient) (Finding, error) {
	if !p.CDC.Enabled {
		return good(cdcOff), nil
	}
	on, err := p.variable(ctx, "log_bin")
	if err != nil {
		return Finding{}, err
	}
	if on == "0" {
		return fail("start the server with --log-bin --binlog-format=ROW", "no binary log exists for the reader"), nil
	}
	for _, want := range [][2]string{{"binlog_format", "ROW"}, {"binlog_row_image", "FULL"}} {
		value, err := p.variable(ctx, want[0])
		if err != nil {
			return Finding{}, err
		}
		if !strings.EqualFold(value, want[1]) {
			return fail(fmt.Sprintf("SET GLOBAL %s = '%s'", want[0], want[1]),
				"%s is %s: a reader does not see the events. Change the server's configuration file, too, and reconnect the writers", want[0], value), nil
		}
	}
	return good("binlog_format is ROW, binlog_row_image is FULL"), nil
}

// procedures are those that a relay calls on MySQL and MariaDB.
var procedures = []string{"heartbeat_counts", "settle", "settle_divert", "settle_backlog", "finish", "free_keys", "purge_written"}

// mysqlProcedures checks that the account may call the procedures of a relay: a
// migration that replaces a procedure revokes the right. The server lists only
// procedures on which the account has a right.
func mysqlProcedures(ctx context.Context, p *patient) (Finding, error) {
	if !p.Enabled || !p.Relay.Enabled || p.CDC.Enabled {
		return good("no relay is enabled, which would call procedures"), nil
	}
	var user, schema string
	if err := p.store.SQL.QueryRowContext(ctx, "SELECT CURRENT_USER(), COALESCE(NULLIF(?, ''), DATABASE())", p.Store.Schema).Scan(&user, &schema); err != nil {
		return Finding{}, err
	}
	rows, err := p.store.SQL.QueryContext(ctx, "SELECT routine_name FROM information_schema.routines WHERE routine_schema = ? AND routine_type = 'PROCEDURE'", schema)
	if err != nil {
		return Finding{}, err
	}
	visible, err := texts(rows)
	if err != nil {
		return Finding{}, err
	}
	name, host, _ := strings.Cut(user, "@")
	account := fmt.Sprintf("'%s'@'%s'", name, host)
	var names, grants []string
	for _, one := range procedures {
		if one = p.Store.Prefix + one; !slices.Contains(visible, one) {
			names, grants = append(names, one), append(grants, "GRANT EXECUTE ON PROCEDURE `"+schema+"`.`"+one+"` TO "+account)
		}
	}
	if len(names) > 0 {
		return fail(strings.Join(grants, "; "), "the account %s cannot be a relay: it lacks EXECUTE on %s; a migration that replaces a procedure revokes it", account, strings.Join(names, ", ")), nil
	}
	return good("the account may call the procedures of a relay"), nil
}
