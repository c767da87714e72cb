package sqlitestore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/sqlname"
	"github.com/waybillhq/waybill/internal/sqlstore"
)

// Config configures the tables and the wait for the write lock. The zero value
// is ready to use.
type Config struct {
	// Schema is the schema of the tables. Only "main", the file of the
	// connection, is accepted, because SQLite does not commit atomically across
	// attached files in WAL mode. Defaults to "main".
	Schema string
	// Prefix is the prefix of the table names. Defaults to "waybill_".
	Prefix string
	// Lanes is the number of lanes, which must be 1. Lanes let several
	// processes deliver at the same time; with SQLite the processes would only
	// wait for each other, because SQLite has one writer. The workers of the
	// relay still deliver aggregates in parallel. Defaults to 1.
	Lanes int
	// BusyTimeout is the maximum time that a write waits for other writers
	// before it fails. Defaults to 10 seconds. A negative value means no wait.
	BusyTimeout time.Duration
	// AllowUnsafeVersion lets the store work with a SQLite older than 3.51.3,
	// which can corrupt a file in WAL mode when a checkpoint and a write
	// coincide. By default the store rejects such versions.
	AllowUnsafeVersion bool
}

const (
	mainSchema  = "main"
	defaultBusy = 10 * time.Second
	maxBusy     = 24 * time.Hour
	lanesOfFile = 1
)

func (c Config) complete() (Config, error) {
	var errs []error
	if c.Schema == "" {
		c.Schema = mainSchema
	}
	if c.Schema != mainSchema {
		errs = append(errs, fmt.Errorf(
			"Config.Schema: %q: the outbox must be in the file of the connection, main; commits are not atomic across attached files",
			c.Schema))
	}
	if c.Prefix == "" {
		c.Prefix = sqlname.DefaultPrefix
	}
	if err := sqlname.CheckPrefix("Config.Prefix", c.Prefix); err != nil {
		errs = append(errs, err)
	} else if strings.HasPrefix(strings.ToLower(c.Prefix), "sqlite_") {
		errs = append(errs, fmt.Errorf("Config.Prefix: %q: SQLite reserves names that start with sqlite_", c.Prefix))
	}
	if c.Lanes == 0 {
		c.Lanes = lanesOfFile
	}
	if c.Lanes != lanesOfFile {
		errs = append(errs, fmt.Errorf("Config.Lanes: %d: SQLite has one writer, so the outbox has one lane", c.Lanes))
	}
	if c.BusyTimeout == 0 {
		c.BusyTimeout = defaultBusy
	}
	if c.BusyTimeout > maxBusy {
		errs = append(errs, fmt.Errorf("Config.BusyTimeout: %v exceeds the maximum of %v", c.BusyTimeout, maxBusy))
	}
	c.BusyTimeout = max(c.BusyTimeout, 0)
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("sqlitestore: %w", err)
	}
	return c, nil
}

// tables are the names that statements put in braces.
var tables = []string{
	"outbox", "delayed", "dead", "history", "dedup", "inbox", "idempotency", "job", "job_sent", "lane", "node", "setting", "migration",
	"destination", "backlog", "backlog_delayed", "backlog_dead", "audit", "rollup",
}

// indexes are the names that migrations put in braces, after "index:".
var indexes = []string{
	"outbox_id_key", "outbox_priority_idx", "delayed_due_idx", "delayed_holds_idx", "dead_seq_idx", "dead_died_idx",
	"dead_holds_idx", "history_id_idx", "history_done_idx", "inbox_open_idx", "inbox_done_idx",
	"idempotency_open_idx", "idempotency_purge_idx", "job_sent_at_idx",
	"backlog_priority_idx", "backlog_tried_idx", "backlog_delayed_due_idx", "backlog_delayed_holds_idx",
	"backlog_dead_seq_idx", "backlog_dead_died_idx", "backlog_dead_holds_idx",
	"audit_at_idx", "dead_cause_idx", "backlog_dead_cause_idx", "dead_type_idx", "dead_aggregate_idx", "backlog_dead_type_idx", "backlog_dead_aggregate_idx",
}

// replacer replaces the names in braces with the configured names, for the
// migrations and for the statements about the outbox, all of whose rows are in
// one lane.
func (c Config) replacer() *strings.Replacer {
	return c.queueReplacer("outbox", []string{"{and_lane}", "", "{where_lane}", "", "{row_lane}", strconv.Itoa(onlyLane)})
}

// backlogReplacer is replacer for the statements about a destination's backlog:
// the tables of the outbox are those of the backlogs, and the rows are those of
// the destination's lane.
func (c Config) backlogReplacer(number int) *strings.Replacer {
	lane := strconv.Itoa(sqlstore.BaseLane(number))
	pairs := []string{"{and_lane}", " AND lane = " + lane, "{where_lane}", " WHERE lane = " + lane, "{row_lane}", lane}
	for table, backlog := range map[string]string{"outbox": "backlog", "delayed": "backlog_delayed", "dead": "backlog_dead"} {
		pairs = append(pairs, "{"+table+"}", c.table(backlog))
	}
	return c.queueReplacer("backlog", pairs)
}

// queueReplacer replaces the names in braces, and pairs. ready is the name of
// the table of ready events. Of two replacements of a name, the first one
// applies.
func (c Config) queueReplacer(ready string, pairs []string) *strings.Replacer {
	pairs = append(pairs, "{prefix}", c.Prefix, "{now}", microsNow, "{new_id}", newID())
	pairs = append(pairs, "{priority_idx}", sqlname.Quote(`"`, c.Prefix+ready+"_priority_idx"))
	for _, name := range tables {
		pairs = append(pairs, "{"+name+"}", c.table(name))
	}
	for _, name := range indexes {
		pairs = append(pairs, "{index:"+name+"}", c.table(name))
	}
	return strings.NewReplacer(pairs...)
}

// table returns the quoted name of a table or of an index.
func (c Config) table(name string) string { return sqlname.Quote(`"`, c.Schema, c.Prefix+name) }

// The defaults of columns must work in SQLite 3.40 and later, because producers
// bring their own SQLite: no unixepoch('subsec'), no unhex.
const (
	// millisNow is milliseconds since 1970. SQLite's clock has a resolution of
	// milliseconds; the day number, a float, is 0.05 ms off.
	millisNow = `CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)`
	// microsNow is microseconds since 1970, the format of all stored times.
	microsNow = millisNow + ` * 1000`
)

// newID returns an expression for the default id of an event: six bytes of
// milliseconds since 1970, the highest first, then ten random bytes. SQLite has
// no function from a number to a byte, so each byte is cut out of a table of
// all bytes.
func newID() string {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	table := "x'" + hex.EncodeToString(all[:]) + "'"
	var b strings.Builder
	b.WriteString("CAST(")
	for shift := 40; shift >= 0; shift -= 8 {
		fmt.Fprintf(&b, "substr(%s, (%s >> %d & 255) + 1, 1) || ", table, millisNow, shift)
	}
	b.WriteString("randomblob(10) AS BLOB)")
	return b.String()
}
