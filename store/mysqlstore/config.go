package mysqlstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/sqlname"
)

// Config names the tables; its zero value is ready.
type Config struct {
	// Schema is the database that the tables are in. Defaults to the connection's.
	Schema string
	// Prefix is what the tables' names start with. Defaults to "waybill_".
	Prefix string
	// Lanes is into how many lanes events are spread, 1 to 1024. It is used when the tables are made and belongs to them
	// from then on; a store whose Config names another number refuses to work. Defaults to 32, or to what the tables
	// have.
	Lanes int
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
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("mysqlstore: %w", err)
	}
	return c, nil
}

// tables are what the statements name in braces, and so are the procedures.
var (
	tables     = []string{"outbox", "delayed", "dead", "history", "dedup", "inbox", "idempotency", "job", "job_sent", "lane", "node", "setting", "migration"}
	procedures = []string{"heartbeat", "settle", "finish", "free_keys", "purge_written"}
)

// tableNames returns the full names of the tables, without their schema.
func (c Config) tableNames() []any {
	names := make([]any, len(tables))
	for i, name := range tables {
		names[i] = c.Prefix + name
	}
	return names
}

// replacer puts the configured names into a statement's braces.
func (c Config) replacer() *strings.Replacer {
	lanes := c.Lanes
	if lanes == 0 {
		lanes = defaultLanes
	}
	numbers := make([]string, lanes)
	for i := range numbers {
		numbers[i] = "(" + strconv.Itoa(i) + ")"
	}
	pairs := []string{
		"{lanes}", strconv.Itoa(lanes), "{lane_numbers}", strings.Join(numbers, ", "),
		"{prefix}", c.Prefix, "{guard_lanes}", sqlname.Quote("`", c.Schema, c.Prefix+"guard_lanes"),
		"{events}", strings.Join(eventrow.Columns(), ", "), "{o.events}", "o." + strings.Join(eventrow.Columns(), ", o."),
	}
	for _, names := range [][]string{tables, procedures} {
		for _, name := range names {
			pairs = append(pairs, "{"+name+"}", sqlname.Quote("`", c.Schema, c.Prefix+name))
		}
	}
	return strings.NewReplacer(pairs...)
}
