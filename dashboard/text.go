package dashboard

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/waybillhq/waybill/internal/words"
)

// clean returns a text in which nothing can act: control characters, terminal
// codes, marks that change the direction of the text and invisible characters
// are written as Go writes them in a literal. Line breaks stay. The template
// escapes HTML.
func clean(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
		i += size
	}
	return b.String()
}

// shortRunes is the maximum length of a text in a list.
const shortRunes = 240

// short returns a clean text for a list, in one line.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(text) > shortRunes {
		text = string([]rune(text)[:shortRunes]) + " …"
	}
	return clean(text)
}

// utc returns an absolute time with its zone.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// ago returns a time relative to another one.
func ago(t, now time.Time) string {
	switch d := now.Sub(t); {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return "in " + span(-d)
	default:
		return span(d) + " ago"
	}
}

// span returns a duration in its two largest units.
func span(d time.Duration) string { return words.Span(d) }

// count returns a number with separated thousands.
func count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// upTo returns a number of dead letters, which are counted up to mostDead.
func upTo(n int64) string {
	if n >= mostDead {
		return count(n) + " or more"
	}
	return count(n)
}

// letters returns a number of dead letters with its noun.
func letters(n int64) string {
	if n >= mostDead {
		return upTo(n) + " dead letters"
	}
	return one(n, "dead letter")
}

// one returns a number with its noun, which gets an s unless the number is 1.
func one(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}
