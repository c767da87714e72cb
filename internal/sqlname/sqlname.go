// Package sqlname checks and quotes the names of tables. Names are the only
// text that is put into a statement; all values are bound.
package sqlname

import (
	"fmt"
	"strings"
)

// DefaultPrefix is the default prefix of table names.
const DefaultPrefix = "waybill_"

// maxLen is the longest name that PostgreSQL does not truncate.
const maxLen = 63

// longest is the room that a prefix must leave for the rest of a name, indexes
// included.
const longest = len("idempotency_expires_at_idx")

// Check returns an error that names the field unless part is a plain
// identifier: a letter or underscore, then letters, digits and underscores, at
// most 63 bytes, all ASCII.
func Check(field, part string) error {
	if part == "" || len(part) > maxLen {
		return fmt.Errorf("%s: %d bytes, want 1 to %d", field, len(part), maxLen)
	}
	for i := range len(part) {
		c := part[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return fmt.Errorf("%s: %q is not a plain name (letters, digits and underscores, no digit first)", field, part)
		}
	}
	return nil
}

// CheckPrefix is [Check] for the prefix of table names, which must leave room
// for the rest of each name.
func CheckPrefix(field, prefix string) error {
	if err := Check(field, prefix); err != nil {
		return err
	}
	if len(prefix) > maxLen-longest {
		return fmt.Errorf("%s: %d bytes, at most %d", field, len(prefix), maxLen-longest)
	}
	return nil
}

// Quote joins checked parts into one quoted name: quote is the dialect's quote
// character. Empty parts are omitted.
func Quote(quote string, parts ...string) string {
	var quoted []string
	for _, part := range parts {
		if part != "" {
			quoted = append(quoted, quote+strings.ReplaceAll(part, quote, quote+quote)+quote)
		}
	}
	return strings.Join(quoted, ".")
}
