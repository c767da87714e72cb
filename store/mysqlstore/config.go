package mysqlstore

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/sqlname"
	"github.com/waybillhq/waybill/internal/sqlstore"
)

// Config names the tables. The zero value is valid.
type Config struct {
	// Schema is the database of the tables. Defaults to the connection's
	// database.
	Schema string
	// Prefix is the prefix of the table names. Defaults to "waybill_".
	Prefix string
	// Lanes is the number of lanes, 1 to 1024. The migration that creates the
	// tables stores the number in them; a store whose Config names a different
	// number returns an error. Defaults to 32, or to the number in existing
	// tables.
	Lanes int
	// OneNode lets relays run on a Galera cluster, or on a replication group
	// with several primaries: it declares that all relays and all writers of
	// the outbox connect to the same node. Defaults to false: a relay refuses
	// such servers, whose nodes do not share the locks that protect a lane.
	OneNode bool
}

func (c Config) complete() (Config, error) {
	if c.Prefix == "" {
		c.Prefix = sqlname.DefaultPrefix
	}
	errs := sqlstore.CheckTables(c.Schema, c.Prefix, c.Lanes)
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("mysqlstore: %w", err)
	}
	return c, nil
}

// The tables and procedures that statements name in braces.
var (
	tables = []string{
		"outbox", "delayed", "dead", "history", "dedup", "inbox", "idempotency", "job", "job_sent", "lane", "node", "setting", "migration",
		"backlog", "backlog_delayed", "backlog_dead", "destination", "audit", "rollup",
	}
	procedures = []string{"heartbeat", "heartbeat_report", "heartbeat_counts", "settle", "finish", "free_keys", "purge_written", "settle_divert", "settle_backlog"}
)

// tableNames returns the full names of the tables, without the schema.
func (c Config) tableNames() []any {
	names := make([]any, len(tables))
	for i, name := range tables {
		names[i] = c.Prefix + name
	}
	return names
}

// replacer replaces the braces of a statement with the configured names.
func (c Config) replacer() *strings.Replacer { return c.replacerOf(layout{}) }

// replacerOf is replacer for the statements of a queue.
func (c Config) replacerOf(l layout) *strings.Replacer {
	lanes := c.Lanes
	if lanes == 0 {
		lanes = sqlstore.DefaultLanes
	}
	numbers := make([]string, lanes)
	for i := range numbers {
		numbers[i] = "(" + strconv.Itoa(i) + ")"
	}
	pairs := []string{
		"{lanes}", strconv.Itoa(lanes), "{lane_numbers}", strings.Join(numbers, ", "),
		"{prefix}", c.Prefix, "{guard_lanes}", sqlname.Quote("`", c.Schema, c.Prefix+"guard_lanes"),
		"{add_causes}", sqlname.Quote("`", c.Schema, c.Prefix+"add_causes"), "{add_report}", sqlname.Quote("`", c.Schema, c.Prefix+"add_report"),
		"{add_lists}", sqlname.Quote("`", c.Schema, c.Prefix+"add_lists"),
		"{events}", strings.Join(eventrow.Columns(), ", "), "{o.events}", "o." + strings.Join(eventrow.Columns(), ", o."),
	}
	for _, names := range [][]string{tables, procedures} {
		for _, name := range names {
			pairs = append(pairs, "{"+name+"}", sqlname.Quote("`", c.Schema, c.Prefix+cmp.Or(l.tables[name], name)))
		}
	}
	return strings.NewReplacer(pairs...)
}
