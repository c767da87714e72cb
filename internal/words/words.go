// Package words formats what operators read and type: durations, and words of a
// shell.
package words

import (
	"fmt"
	"strings"
	"time"
)

// Span returns a duration in its two largest units.
func Span(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	for i, u := range units {
		if d < u.size {
			continue
		}
		text := fmt.Sprintf("%d %s", d/u.size, u.name)
		if i+1 < len(units) && d/u.size < 10 {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				text += fmt.Sprintf(" %d %s", rest, units[i+1].name)
			}
		}
		return text
	}
	return ""
}

// harmless are the characters that no shell treats specially.
const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@+,"

// Quoted returns a text as a word of a shell.
func Quoted(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !strings.ContainsRune(harmless, r) }) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
