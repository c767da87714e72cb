package relay

import (
	"strings"
	"unicode"
)

// breaker counts dead letters in a row that have the same cause.
type breaker struct {
	limit int // negative: none
	cause string
	count int
}

// died counts a dead letter, and reports whether the limit is reached.
func (b *breaker) died(err error) bool {
	if cause := causeOf(err.Error()); cause != b.cause {
		b.cause, b.count = cause, 0
	}
	b.count++
	return b.limit > 0 && b.count == b.limit
}

// passed notes a delivery that succeeded, or an operator's decision.
func (b *breaker) passed() { b.cause, b.count = "", 0 }

// causeOf returns an error's text without the parts that differ between events:
// words with digits, and quoted parts.
func causeOf(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`"'`+"`", r) })
	kept := words[:0]
	for _, w := range words {
		if !strings.ContainsFunc(w, unicode.IsDigit) {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}
