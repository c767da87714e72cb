package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill/store"
)

// Causes is implemented by stores, and by their backlogs, that keep the cause
// of each dead letter. It is optional: callers find it by a type assertion on
// [OutboxAdmin] and on [Backlog].
//
// A cause is [CauseOf] the last error of a dead letter. A settlement does not
// compute causes: NoteCauses adds them later, also to dead letters of programs
// and tables that have none.
type Causes interface {
	// NoteCauses adds the causes of at most limit dead letters that have none,
	// and returns their number. It may run on several nodes concurrently.
	NoteCauses(ctx context.Context, limit int) (int, error)
	// CountCauses returns the causes of all dead letters, the most frequent
	// first and then in the order of their ids, at most limit. The empty id
	// stands for the dead letters that have no cause yet.
	CountCauses(ctx context.Context, limit int) ([]CauseCount, error)
	// ListCause returns the dead letters with a cause, in the order of their
	// seq, after a seq, at most limit. It returns none for the empty id.
	ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error)
}

// CauseCount is a group of dead letters with one cause.
type CauseCount struct {
	ID      string
	Letters int64
	// First and Last are when the first and the last of them died.
	First, Last time.Time
}

// varying matches what differs between errors with the same cause. The first
// alternative is a code, which stays.
var varying = regexp.MustCompile(`(?i)\b(?:status|code|sqlstate|errno|http)(?:\s+code)?[\s:=]*[0-9a-z]{3,5}\b` +
	"|\"[^\"\n]*\"|`[^`\n]*`|\\B'[^'\n]*'" +
	`|[\w.-]*\d[\w.:-]*`)

var codeWord = regexp.MustCompile(`(?i)^(?:status|code|sqlstate|errno|http)(?:\s+code)?[\s:=]`)

// causeRunes is the maximum length of the text of a cause.
const causeRunes = 200

// CauseText returns an error without quoted parts, ids and numbers: events that
// failed for the same reason have the same text.
func CauseText(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 16*causeRunes { // a limit for the expression
		text = text[:16*causeRunes]
	}
	text = varying.ReplaceAllStringFunc(text, func(part string) string {
		switch {
		case strings.ContainsAny(part[:1], "\"'`"):
			return part[:1] + "…" + part[:1]
		case codeWord.MatchString(part):
			return part
		case strings.HasSuffix(part, ":"):
			return "#:"
		}
		return "#"
	})
	if utf8.RuneCountInString(text) > causeRunes {
		text = string([]rune(text)[:causeRunes]) + " …"
	}
	if text == "" {
		return "no error stored"
	}
	return text
}

// CauseOf returns the id of the cause of an error: twelve hexadecimal digits of
// a hash of its [CauseText].
func CauseOf(text string) string {
	sum := sha256.Sum256([]byte(CauseText(text)))
	return hex.EncodeToString(sum[:6])
}
