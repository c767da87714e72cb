package driver

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
)

// laneSeparator separates the parts of a lane's hash. No part can contain it:
// events reject control characters.
const laneSeparator = 0x1f

// LaneOf returns the lane of an ordered event in an outbox of n lanes: the
// first four bytes of the SHA-256 of tenant, aggregate type and aggregate id,
// separated by the byte 0x1f, as a big-endian number, modulo n. The databases
// compute the same lane for producers that insert with plain SQL.
func LaneOf(tenant, aggregateType, aggregateID string, n int) int {
	if n <= 1 {
		return 0
	}
	// The buffer fits every valid event, so that it stays on the stack.
	var buf [64 + 64 + 128 + 2]byte
	key := append(buf[:0], tenant...)
	key = append(key, laneSeparator)
	key = append(key, aggregateType...)
	key = append(key, laneSeparator)
	key = append(key, aggregateID...)
	sum := sha256.Sum256(key)
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(n))
}

// EncodeHeaders returns the stored form of headers: a flat JSON object, or ""
// (stored as NULL) for no headers.
func EncodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "", nil
	}
	if _, bad := headers[""]; bad {
		return "", errors.New("store: headers: empty name")
	}
	data, err := json.Marshal(headers)
	if err != nil {
		return "", fmt.Errorf("store: headers: %w", err)
	}
	return string(data), nil
}

// DecodeHeaders reads the text that [EncodeHeaders] writes. An empty text and
// "null" mean no headers. Any value except a flat object of strings is an
// error.
func DecodeHeaders(text string) (map[string]string, error) {
	if text == "" || text == "null" {
		return nil, nil
	}
	var values map[string]*string // pointers distinguish null from ""
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("store: headers are not a flat JSON object of strings: %w", err)
	}
	if len(values) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(values))
	for name, value := range values {
		if name == "" {
			return nil, errors.New("store: headers: empty name")
		}
		if value == nil {
			return nil, fmt.Errorf("store: headers are not a flat JSON object of strings: %q is null", name)
		}
		headers[name] = *value
	}
	return headers, nil
}

// maxError is the maximum length of a stored error text.
const maxError = 4000

// CutError returns the stored form of an error text: valid UTF-8 without NUL,
// at most 4000 bytes, truncated between runes.
func CutError(text string) string { return cutText(text, maxError) }

// cutText is [CutError] with another maximum length.
func cutText(text string, longest int) string {
	clean := make([]byte, 0, min(len(text), longest))
	for _, r := range text {
		if r == 0 || r == utf8.RuneError {
			r = '?'
		}
		if len(clean)+utf8.RuneLen(r) > longest {
			break
		}
		clean = utf8.AppendRune(clean, r)
	}
	return string(clean)
}

// clockMargin is the maximum difference between the clock of a client, which
// stamped an id, and the clock of the database.
const clockMargin = time.Hour

// HistoryReaches reports whether the history of delivered events, complete
// since from, would contain the event if it was delivered: an event that is
// then not found was never committed. from is the setting history_from: an RFC
// 3339 time, "" for a history without a beginning, or "never".
func HistoryReaches(from string, id waybill.ID) bool {
	if from == "" {
		return true
	}
	since, err := time.Parse(time.RFC3339, from)
	return err == nil && since.Before(id.Time().Add(-clockMargin))
}
