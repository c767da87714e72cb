package storetest

import (
	_ "embed" // the golden matrix
	"fmt"
	"slices"
	"strings"
)

//go:embed testdata/matrix.txt
var golden string

// Matrix returns the golden matrix, a Markdown table: which store shows which behaviour. Every "no" in it has its reason
// below the table.
func Matrix() string { return golden }

// behaviour is a row of the matrix.
type behaviour struct{ id, title string }

// behaviours returns the rows of the matrix, in order.
func behaviours() []behaviour {
	return []behaviour{
		{"1", "a rollback leaves nothing behind"},
		{"2", "a commit leaves the rows, and is told once"},
		{"3", "no write without an open transaction"},
		{"4", "several writes, one order"},
		{"5", "an empty write does nothing"},
		{"6", "BeforeWrite changes, suppresses, fails"},
		{"7", "hooks after the write change nothing"},
		{"8", "limits are checked before the database is touched"},
		{"9", "an event is written as it was"},
		{"10", "ids strictly increase"},
		{"11", "one pending event per dedup key"},
		{"12", "plain SQL inserts"},
		{"13", "savepoints, by the driver's own means"},
		{"13 (SQL text)", "savepoints, by SQL text"},
		{"13a", "Track writes what aggregates raised"},
		{"13b", "the transaction belongs to InTx"},
		{"13c", "20,000 events and 40 MiB in one transaction"},
		{"33", "a row that commits late is found"},
		{"W1", "the transaction in the context"},
		{"W2", "contexts that end"},
		{"W3", "joining a transaction"},
		{"W4", "a write that the database refused"},
		{"W5", "transactions that somebody else commits"},
		{"W6", "the hub hears every commit once"},
		{"W7", "every field comes back as it was written"},
		{"W8", "payloads come back byte for byte"},
		{"W9", "headers, also broken ones"},
		{"W10", "origin from the context"},
		{"W11", "delays, by the database's clock"},
		{"W12", "Committed knows, or says that it does not"},
		{"W13", "random transactions agree with a model"},
		{"R1", "Fetch"},
		{"R2", "Sweep"},
		{"R3", "Load"},
		{"R4", "Due"},
		{"R5", "reads see committed rows only"},
		{"R6", "Holds"},
		{"R7", "Follow"},
		{"R8", "Urgent"},
		{"R9", "Writers: what has been drawn"},
		{"R10", "Writers: who may still commit"},
		{"L1", "heartbeats and membership"},
		{"L2", "one outbox has one relay"},
		{"L3", "acquiring free lanes"},
		{"L4", "taking over from a node that died"},
		{"L5", "releasing lanes"},
		{"L6", "leaving"},
		{"L7", "every lane has one winner"},
		{"S1", "done, with and without history"},
		{"S2", "retry"},
		{"S3", "dead"},
		{"S4", "mixed settlements"},
		{"S5", "the fence of a settlement"},
		{"S6", "rows that are gone"},
		{"S7", "stored errors"},
		{"S8", "a stale owner against a take-over"},
		{"S9", "Finish, in the caller's transaction"},
		{"I1", "accepting events for a group"},
		{"I2", "claiming them"},
		{"I3", "success under a claim"},
		{"I4", "records that are due"},
		{"K1", "claiming idempotency keys"},
		{"K2", "one of many has a key"},
		{"K3", "how attempts at a key end"},
		{"K4", "taking keys in a transaction"},
		{"K5", "answers, points and leases under a claim"},
		{"K6", "stored answers"},
		{"K7", "looking at keys, and deciding"},
		{"K8", "purging keys"},
		{"J1", "running jobs, one node at a time"},
		{"J2", "what jobs send"},
		{"J3", "forgetting what they sent"},
		{"J4", "delivered, and never recorded"},
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

// column is what a store shows: behaviour id → "yes", "no", or "" for one that did not run to its end.
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
				return nil, fmt.Errorf("storetest: the matrix has no stores: %q", line)
			}
			stores = cells[2:]
			for _, name := range stores {
				columns[name] = column{}
			}
			continue
		}
		if len(cells) != len(stores)+2 {
			return nil, fmt.Errorf("storetest: the matrix has a row with %d cells, want %d: %q", len(cells), len(stores)+2, line)
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
	for _, b := range behaviours() {
		if got[b.id] != want[b.id] {
			diffs = append(diffs, fmt.Sprintf("%s, behaviour %s (%s): %q, but the golden matrix says %q",
				store, b.id, b.title, got[b.id], want[b.id]))
		}
	}
	return diffs
}

// String returns the column as text, one behaviour per line, with the reasons of what is not shown.
func (c column) text(store string, reasons map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "what %s shows:\n", store)
	for _, b := range behaviours() {
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

// complete reports whether every behaviour has a cell.
func (c column) complete() bool {
	return !slices.ContainsFunc(behaviours(), func(b behaviour) bool { return c[b.id] == "" })
}
