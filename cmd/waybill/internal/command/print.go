package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
)

// printJSON prints a value as JSON.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows with aligned columns.
type table struct {
	rows [][]string
}

func newTable(head ...string) *table { return &table{rows: [][]string{head}} }

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = plain(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
}

// tableWidth is the maximum width of a table, if its cells permit it: most
// screens wrap longer lines.
const (
	tableWidth = 100
	// lastWidth is the minimum width of the last column. If less is left, the
	// last column is printed below the others.
	lastWidth = 28
	// cutWidth is the minimum width of a truncated column.
	cutWidth = 8
	gap      = 2
)

// whole lists columns whose cells are copied into other commands: they are
// never truncated.
var whole = []string{"ID", "KEY", "BY", "KIND", "NODE", "GROUP", "OPERATION", "VALUE", "CHECK", "STATUS", "WHAT", "JOB", "DESTINATION", "CAUSE", "EXAMPLE"}

// writeTo prints the table. The last column holds texts, which wrap onto
// further lines.
func (t *table) writeTo(out io.Writer) error {
	last := 0
	for _, row := range t.rows {
		last = max(last, len(row)-1)
	}
	widths := t.widths(last)
	used := 0
	for _, w := range widths {
		used += w + gap
	}
	room, below := tableWidth-used, false
	if last > 0 && room < lastWidth {
		below = t.longest(last) > room
	}
	var b strings.Builder
	for i, row := range t.rows {
		for c, cell := range row[:min(len(row), last)] {
			cell = cut(cell, widths[c])
			b.WriteString(cell + strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell)+gap))
		}
		switch {
		case len(row) <= last:
		case below:
			if i > 0 && row[last] != "-" && row[last] != "" {
				b.WriteString("\n    " + strings.Join(wrap(row[last], tableWidth-4), "\n    "))
			}
		default:
			b.WriteString(strings.Join(wrap(row[last], max(room, lastWidth)), "\n"+strings.Repeat(" ", used)))
		}
		b.WriteByte('\n')
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// longest returns the width of the widest cell of a column.
func (t *table) longest(column int) int {
	longest := 0
	for _, row := range t.rows {
		if len(row) > column {
			longest = max(longest, utf8.RuneCountInString(row[column]))
		}
	}
	return longest
}

// widths returns the width of each column but the last: the width of its widest
// cell, or less if the table would be too wide.
func (t *table) widths(last int) []int {
	widths := make([]int, last)
	for _, row := range t.rows {
		for c, cell := range row[:min(len(row), last)] {
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
	}
	for {
		used, widest := 0, -1
		for c, w := range widths {
			used += w + gap
			mayCut := w > cutWidth && w > utf8.RuneCountInString(t.rows[0][c]) && !slices.Contains(whole, t.rows[0][c]) && !t.times(c)
			if mayCut && (widest < 0 || w > widths[widest]) {
				widest = c
			}
		}
		if used <= tableWidth+gap || widest < 0 {
			return widths
		}
		widths[widest]--
	}
}

// times reports whether a column has times.
func (t *table) times(column int) bool {
	for _, row := range t.rows[1:] {
		if column < len(row) && row[column] != "-" {
			_, err := time.Parse(time.RFC3339, row[column])
			return err == nil
		}
	}
	return false
}

// wrap breaks a text between words into lines of a width. A longer word stays
// whole: it may be an id or a command.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// plain returns a text as it may be printed on one line of a terminal. The text
// of an error may come from an untrusted party and must not contain control
// sequences.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return '?'
		}
		return r
	}, text)
}

// cut truncates a text.
func cut(text string, limit int) string {
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}

// at formats a time to the second, with its zone; "-" for the zero time.
func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// or returns a text, or "-" for an empty one.
func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// aggregate formats an event's aggregate.
func aggregate(kind, id string) string {
	if id == "" {
		return "-"
	}
	if kind == "" {
		return id
	}
	return kind + "/" + id
}

// errorWidth is the maximum length of an error in a table; show ID prints the
// whole error.
const errorWidth = 60

// eventTable returns a table of events.
func eventTable(evs []view.Event) *table {
	t := newTable("ID", "STATE", "TYPE", "AGGREGATE", "TENANT", "TRIES", "SINCE OR DUE", "ERROR")
	for _, ev := range evs {
		when := ev.CreatedAt // ready since then
		switch {
		case !ev.EndedAt.IsZero():
			when = ev.EndedAt
		case !ev.DueAt.IsZero():
			when = ev.DueAt
		}
		t.row(ev.ID, ev.State, ev.Type, aggregate(ev.AggregateType, ev.AggregateID), or(ev.TenantID), ev.Attempts, at(when), or(cut(ev.LastError, errorWidth)))
	}
	return t
}

// count returns a number and its noun.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
