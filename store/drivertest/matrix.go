package drivertest

import (
	_ "embed" // the golden matrix
	"fmt"
	"slices"
	"strings"
)

//go:embed testdata/matrix.txt
var golden string

// Matrix returns the golden matrix, a Markdown table of the checks that each
// store passes. Every "no" has its reason below the table.
func Matrix() string { return golden }

// behavior is a row of the matrix.
type behavior struct{ id, title string }

// behaviors returns the rows of the matrix, in order.
func behaviors() []behavior {
	return []behavior{
		{"1", "a rollback leaves nothing behind"},
		{"2", "a commit keeps the rows and is published once"},
		{"3", "no write without an open transaction"},
		{"4", "several writes keep their order"},
		{"5", "an empty write does nothing"},
		{"6", "BeforeWrite changes, suppresses, fails"},
		{"7", "hooks after the write change nothing"},
		{"8", "limits are checked before any SQL runs"},
		{"9", "later changes do not affect a written event"},
		{"10", "ids strictly increase"},
		{"11", "one pending event per dedup key"},
		{"12", "plain SQL inserts"},
		{"13", "savepoints, with the driver's API"},
		{"13 (SQL text)", "savepoints, with SQL text"},
		{"13a", "Track writes the events of aggregates"},
		{"13b", "InTx owns the transaction"},
		{"13c", "20,000 events and 40 MiB in one transaction"},
		{"33", "a row that commits late is found"},
		{"W1", "the transaction in the context"},
		{"W2", "canceled contexts"},
		{"W3", "joining a transaction"},
		{"W4", "a write that the database rejects"},
		{"W5", "transactions that the caller commits"},
		{"W6", "the hub receives every commit once"},
		{"W7", "every field is read as it was written"},
		{"W8", "payloads are read byte for byte"},
		{"W9", "headers, including corrupt ones"},
		{"W10", "origin from the context"},
		{"W11", "delays, by the database's clock"},
		{"W12", "Committed is correct or reports uncertainty"},
		{"W13", "random transactions match a model"},
		{"R1", "Fetch"},
		{"R2", "Sweep"},
		{"R3", "Load"},
		{"R4", "Due"},
		{"R5", "reads see committed rows only"},
		{"R6", "Holds"},
		{"R7", "FetchAggregate"},
		{"R8", "FetchPriority"},
		{"R9", "OpenWriters: drawn seqs"},
		{"R10", "OpenWriters: open transactions"},
		{"L1", "heartbeats and membership"},
		{"L2", "one outbox has one relay"},
		{"L3", "acquiring free lanes"},
		{"L4", "takeover from a dead node"},
		{"L5", "releasing lanes"},
		{"L6", "leaving"},
		{"L7", "every lane has one winner"},
		{"S1", "done, with and without history"},
		{"S2", "retry"},
		{"S3", "dead"},
		{"S4", "mixed settlements"},
		{"S5", "the fence of a settlement"},
		{"S6", "missing rows"},
		{"S7", "stored errors"},
		{"S8", "a stale owner during a takeover"},
		{"S9", "Finish, in the caller's transaction"},
		{"I1", "accepting events for a group"},
		{"I2", "claiming events for a group"},
		{"I3", "success under a claim"},
		{"I4", "due records"},
		{"K1", "claiming idempotency keys"},
		{"K2", "concurrent claims of a key"},
		{"K3", "ends of attempts"},
		{"K4", "taking keys in a transaction"},
		{"K5", "answers, points and leases under a claim"},
		{"K6", "stored answers"},
		{"K7", "inspecting and resolving keys"},
		{"K8", "purging keys"},
		{"J1", "one node at a time runs a job"},
		{"J2", "events sent by jobs"},
		{"J3", "forgetting sent events"},
		{"J4", "events delivered without a record"},
		{"O1", "Stats"},
		{"O2", "Count and List"},
		{"O3", "Find"},
		{"O4", "Replay"},
		{"O5", "Discard"},
		{"O6", "Unblock"},
		{"O7", "Purge"},
		{"O8", "PurgeWritten and MakeReady"},
		{"O9", "Tidy"},
		{"O10", "SetLanes"},
	}
}

// column is the result of a store: behavior id → "yes", "no", or "" for an
// incomplete run.
type column map[string]string

// The cells of the matrix.
const (
	yes = "yes"
	no  = "no"
)

// parseMatrix reads a matrix: store → column.
func parseMatrix(text string) (map[string]column, error) {
	var stores []string
	columns := map[string]column{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if stores == nil {
			if len(cells) < 3 {
				return nil, fmt.Errorf("drivertest: the matrix has no stores: %q", line)
			}
			stores = cells[2:]
			for _, name := range stores {
				columns[name] = column{}
			}
			continue
		}
		if len(cells) != len(stores)+2 {
			return nil, fmt.Errorf("drivertest: the matrix has a row with %d cells, want %d: %q", len(cells), len(stores)+2, line)
		}
		for i, name := range stores {
			columns[name][cells[0]] = cells[2+i]
		}
	}
	return columns, nil
}

// compare returns how a column differs from the golden one.
func compare(store string, got, want column) []string {
	var diffs []string
	for _, b := range behaviors() {
		if got[b.id] != want[b.id] {
			diffs = append(diffs, fmt.Sprintf("%s, behavior %s (%s): %q, want %q as in the golden matrix",
				store, b.id, b.title, got[b.id], want[b.id]))
		}
	}
	return diffs
}

// text returns the column as text, one behavior per line, with the reason of
// each "no".
func (c column) text(store string, reasons map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "matrix column of %s:\n", store)
	for _, b := range behaviors() {
		cell := c[b.id]
		if cell == "" {
			cell = "-"
		}
		fmt.Fprintf(&text, "%-14s %-52s %s", b.id, b.title, cell)
		if reason := reasons[b.id]; reason != "" {
			text.WriteString(": " + reason)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// complete reports whether every behavior has a cell.
func (c column) complete() bool {
	return !slices.ContainsFunc(behaviors(), func(b behavior) bool { return c[b.id] == "" })
}
