// Package hint adds a hint to errors: the next command or change.
package hint

import (
	"errors"
	"fmt"
)

// Error is an error with a hint.
type Error struct {
	Err  error
	Hint string
}

// Error returns the text without the hint, which the printer appends.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error with a hint. The text is formatted as by [fmt.Errorf].
func New(advice, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Hint: advice}
}

// Of returns the hint of an error, or "".
func Of(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// Nearest returns the name that is closest to a misspelled one, or "" if none
// is close.
func Nearest(wrong string, names []string) string {
	best, nearest := "", max(2, len(wrong)/3)+1
	for _, name := range names {
		if d := distance(wrong, name); d < nearest {
			best, nearest = name, d
		}
	}
	return best
}

// distance returns the number of insertions, deletions, substitutions and swaps
// of neighboring letters that turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
