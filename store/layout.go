package store

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

// laneSeparator stands between the parts of a lane's hash. No part can contain it: events refuse control characters.
const laneSeparator = 0x1f

// LaneOf returns the lane of an ordered event in an outbox of n lanes: the first four bytes of the SHA-256 of tenant,
// aggregate type and aggregate id, with the byte 0x1f between them, as a big-endian number, modulo n. The databases
// compute the same for producers that insert with plain SQL.
func LaneOf(tenant, aggregateType, aggregateID string, n int) int {
	if n <= 1 {
		return 0
	}
	// Large enough for every valid event, so that it stays on the stack.
	var buf [64 + 64 + 128 + 2]byte
	key := append(buf[:0], tenant...)
	key = append(key, laneSeparator)
	key = append(key, aggregateType...)
	key = append(key, laneSeparator)
	key = append(key, aggregateID...)
	sum := sha256.Sum256(key)
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(n))
}

// EncodeHeaders returns the headers as they are stored: a flat JSON object, or "" (stored as NULL) for none.
func EncodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "", nil
	}
	if _, bad := headers[""]; bad {
		return "", errors.New("store: headers: an empty name")
	}
	data, err := json.Marshal(headers)
	if err != nil {
		return "", fmt.Errorf("store: headers: %w", err)
	}
	return string(data), nil
}

// DecodeHeaders reads what [EncodeHeaders] writes. An empty text and "null" mean none. Anything but a flat object of
// strings is an error.
func DecodeHeaders(text string) (map[string]string, error) {
	if text == "" || text == "null" {
		return nil, nil
	}
	var values map[string]*string // pointers, because a null would pass for an empty string
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("store: headers are not a flat JSON object of strings: %w", err)
	}
	if len(values) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(values))
	for name, value := range values {
		if name == "" {
			return nil, errors.New("store: headers: an empty name")
		}
		if value == nil {
			return nil, fmt.Errorf("store: headers are not a flat JSON object of strings: %q is null", name)
		}
		headers[name] = *value
	}
	return headers, nil
}

// maxError is how much of an error's text is stored.
const maxError = 4000

// CutError returns an error's text as it is stored: valid UTF-8 without NUL, at most 4000 bytes, cut between runes.
func CutError(text string) string {
	clean := make([]byte, 0, min(len(text), maxError))
	for _, r := range text {
		if r == 0 || r == utf8.RuneError {
			r = '?'
		}
		if len(clean)+utf8.RuneLen(r) > maxError {
			break
		}
		clean = utf8.AppendRune(clean, r)
	}
	return string(clean)
}

// clockMargin is by how much the clocks of a client, which stamped an id, and of the database may differ.
const clockMargin = time.Hour

// HistoryReaches reports whether the history of delivered events, complete since from, would show that the event was delivered: then
// one that is not found was never committed. from is the setting history_from: a time as in RFC 3339, "" for "since ever", or
// "never".
func HistoryReaches(from string, id waybill.ID) bool {
	if from == "" {
		return true
	}
	since, err := time.Parse(time.RFC3339, from)
	return err == nil && since.Before(id.Time().Add(-clockMargin))
}
