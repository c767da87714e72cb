package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
)

// printJSON prints a value for programs.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows for people, columns aligned.
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

func (t *table) writeTo(out io.Writer) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
	return nil
}

// plain returns a text as it may be printed on one line of a terminal: whoever can make an event fail chooses its error's text, and
// must not move somebody's cursor with it.
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

// cut returns the beginning of a text.
func cut(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}

// at returns a time for people, or "-".
func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// or returns a text, or "-" for none.
func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// aggregate returns an event's aggregate for people.
func aggregate(kind, id string) string {
	if id == "" {
		return "-"
	}
	if kind == "" {
		return id
	}
	return kind + "/" + id
}

// errorWidth is how much of an error a table shows; show ID has all of it.
const errorWidth = 60

// eventTable returns a table of events.
func eventTable(evs []view.Event) *table {
	t := newTable("ID", "STATE", "TYPE", "AGGREGATE", "TENANT", "TRIES", "WRITTEN", "WHEN", "ERROR")
	for _, ev := range evs {
		when := ev.DueAt
		if !ev.EndedAt.IsZero() {
			when = ev.EndedAt
		}
		t.row(ev.ID, ev.State, ev.Type, aggregate(ev.AggregateType, ev.AggregateID), or(ev.TenantID), ev.Attempts, at(ev.CreatedAt), at(when),
			or(cut(ev.LastError, errorWidth)))
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
