package mutants

import (
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// Rename replaces identifiers of Go code.
func Rename(text string, names map[string]string) string { return rename(text, names) }

// Shape returns the tokens of Go code.
func Shape(text string) string {
	var out []string
	for _, w := range words(text) {
		out = append(out, w.text)
	}
	return strings.Join(out, " ")
}

// Identifiers returns the identifiers of the lines that the mutant replaces.
func (m Mutant) Identifiers() []string {
	var out []string
	for _, h := range m.Hunks {
		for _, w := range words(h.Old) {
			if w.tok == token.IDENT && types.Universe.Lookup(w.text) == nil {
				out = append(out, w.text)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Part returns the declaration that the mutant changes, as a file, or the whole
// text.
func (m Mutant) Part(text string) string {
	from, to, ok := symbolRange(m.File, text, m.In)
	if !ok {
		return text
	}
	return "package p\n\n" + text[from:to] + "\n"
}
