package pgstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/internal/sqlname"
	"github.com/waybillhq/waybill/internal/sqlstore"
)

// Config configures the tables and the wake-ups of relays. The zero value is
// ready to use.
type Config struct {
	// Schema is the schema of the tables. Defaults to the connection's search
	// path.
	Schema string
	// Prefix is the prefix of the table names. Defaults to "waybill_".
	Prefix string
	// Lanes is the number of lanes, 1 to 1024. Migrate stores the number in the
	// tables; after that, only SetLanes changes it. A store whose Config has a
	// different number returns an error. Defaults to 32, or to the number in
	// the tables.
	Lanes int
	// NotifyInterval is the minimum interval between wake-ups (NOTIFY) of
	// relays in other processes. A wake-up is sent outside the committing
	// transaction. Defaults to 10 ms. A negative value disables wake-ups;
	// relays then poll.
	NotifyInterval time.Duration
	// ListenURL is the URL on which relays listen for wake-ups. The URL must
	// lead to the same database without a pooler, because LISTEN needs a
	// session. Defaults to the pool's own address. ListenURL applies to [New]
	// only. A relay that cannot listen polls.
	ListenURL string
}

func (c Config) complete() (Config, error) {
	if c.Prefix == "" {
		c.Prefix = sqlname.DefaultPrefix
	}
	errs := sqlstore.CheckTables(c.Schema, c.Prefix, c.Lanes)
	if c.NotifyInterval == 0 {
		c.NotifyInterval = defaultNotify
	}
	if c.ListenURL != "" {
		// The store does not return the parser's error, which may quote the
		// URL.
		if _, err := pgx.ParseConfig(c.ListenURL); err != nil {
			errs = append(errs, errors.New("Config.ListenURL: invalid PostgreSQL URL"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("pgstore: %w", err)
	}
	return c, nil
}

// objects are the names that statements put in braces, tables first.
var objects = []string{
	"outbox", "delayed", "dead", "history", "dedup", "lane", "node", "inbox", "idempotency", "job", "job_sent", "setting", "migration",
	"destination", "backlog", "backlog_delayed", "backlog_dead", "audit", "rollup",
	"history_rest", "outbox_seq", "lane_of", "lane_count", "choose_lane", "inbox_of", "timeline",
}

// replacer replaces the names in braces with the configured names.
func (c Config) replacer() *strings.Replacer {
	return strings.NewReplacer(c.names()...)
}

// backlogReplacer is replacer for the statements of a destination's backlog:
// the tables of the outbox are those of the backlogs, and {low} and {high} are
// the first and the last of the lanes that the destination's rows have there.
func (c Config) backlogReplacer(number int) *strings.Replacer {
	low := sqlstore.BaseLane(number)
	pairs := []string{"{low}", strconv.Itoa(low), "{high}", strconv.Itoa(low + sqlstore.MaxLanes - 1), "{number}", strconv.Itoa(number)}
	for table, backlog := range map[string]string{"outbox": "backlog", "delayed": "backlog_delayed", "dead": "backlog_dead"} {
		pairs = append(pairs, "{"+table+"}", sqlname.Quote(`"`, c.Schema, c.Prefix+backlog))
	}
	// Of two replacements of a name, the first one applies.
	return strings.NewReplacer(append(pairs, c.names()...)...)
}

// names are the pairs of a replacer.
func (c Config) names() []string {
	lanes := c.Lanes
	if lanes == 0 {
		lanes = sqlstore.DefaultLanes
	}
	pairs := []string{"{prefix}", c.Prefix, "{lanes}", strconv.Itoa(lanes)}
	for _, name := range objects {
		pairs = append(pairs, "{"+name+"}", sqlname.Quote(`"`, c.Schema, c.Prefix+name))
	}
	return pairs
}
