package pgstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/internal/sqlname"
)

// Config names the tables; its zero value is ready.
type Config struct {
	// Schema is where the tables are. Defaults to the connection's search path.
	Schema string
	// Prefix is what the tables' names start with. Defaults to "waybill_".
	Prefix string
	// Lanes is into how many lanes events are spread, 1 to 1024. It is used when the tables are made and belongs to them
	// from then on, until SetLanes changes it; a store whose Config names another number refuses to work. Defaults to 32,
	// or to what the tables have.
	Lanes int
	// NotifyInterval is how far apart commits wake relays of other processes, with NOTIFY, outside of the committing
	// transaction. Defaults to 10 ms; negative: never, they poll.
	NotifyInterval time.Duration
	// ListenURL is where relays listen for these wake-ups: a URL of the same database that does not lead through a pooler, because
	// LISTEN needs a session. Defaults to the pool's own address. It is for [New]; what cannot listen polls.
	ListenURL string
}

const (
	defaultLanes = 32
	maxLanes     = 1024
)

func (c Config) complete() (Config, error) {
	var errs []error
	if c.Prefix == "" {
		c.Prefix = sqlname.UsualPrefix
	}
	if err := sqlname.CheckPrefix("Config.Prefix", c.Prefix); err != nil {
		errs = append(errs, err)
	}
	if c.Schema != "" {
		if err := sqlname.Check("Config.Schema", c.Schema); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Lanes < 0 || c.Lanes > maxLanes {
		errs = append(errs, fmt.Errorf("Config.Lanes: %d is not between 1 and %d", c.Lanes, maxLanes))
	}
	if c.ListenURL != "" {
		if _, err := pgx.ParseConfig(c.ListenURL); err != nil { // the error may quote it
			errs = append(errs, errors.New("Config.ListenURL: pgx cannot read it"))
		}
	}
	if c.NotifyInterval == 0 {
		c.NotifyInterval = defaultNotify
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("pgstore: %w", err)
	}
	return c, nil
}

// objects are what the statements name in braces, tables first.
var objects = []string{
	"outbox", "delayed", "dead", "history", "dedup", "lane", "node", "inbox", "idempotency", "job", "job_sent", "setting", "migration",
	"history_rest", "outbox_seq", "lane_of", "lane_count", "choose_lane", "inbox_of",
}

// replacer puts the configured names into a statement's braces.
func (c Config) replacer() *strings.Replacer {
	lanes := c.Lanes
	if lanes == 0 {
		lanes = defaultLanes
	}
	pairs := []string{"{prefix}", c.Prefix, "{lanes}", strconv.Itoa(lanes)}
	for _, name := range objects {
		pairs = append(pairs, "{"+name+"}", sqlname.Quote(`"`, c.Schema, c.Prefix+name))
	}
	return strings.NewReplacer(pairs...)
}
