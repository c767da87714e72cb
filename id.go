package waybill

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// ID identifies an event for its whole life: in the table, in the broker's
// headers and in the consumer's inbox. It is a ULID: 48 bits of Unix
// milliseconds followed by 80 bits of randomness, so ids sort by creation time.
//
// The client creates the id before the insert, and the table has a unique key
// on it. The id therefore resolves an ambiguous commit, and makes a hidden
// retry of the driver harmless.
type ID [16]byte

// idTextLen is the length of an ID's text: 26 characters of Crockford's base
// 32.
const idTextLen = ulid.EncodedSize

// process creates the ids of this process. It is the only variable of the
// package: ids increase strictly within a process, across goroutines, which
// needs process-wide state.
var process idSource

// NewID returns a new ID that is larger than every ID that this process has
// created before, even if the clock was set back.
func NewID() ID {
	return process.next(uint64(time.Now().UnixMilli()))
}

// idSource returns strictly increasing ids.
type idSource struct {
	mu   sync.Mutex
	last ID
}

func (s *idSource) next(ms uint64) ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ms > s.last.millis() {
		s.reseed(ms)
		return s.last
	}
	// In the same millisecond, or after the clock was set back, count up from
	// the last id instead of drawing a new one.
	if !s.last.increment() {
		s.reseed(s.last.millis() + 1)
	}
	return s.last
}

// reseed draws new randomness for millisecond ms. The top bit stays clear, so
// that at least 2^79 ids fit into one millisecond before the counter overflows.
func (s *idSource) reseed(ms uint64) {
	var id ID
	_, _ = rand.Read(id[6:]) // crypto/rand.Read never returns an error
	id[6] &= 0x7f
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], ms)
	copy(id[:6], stamp[2:])
	s.last = id
}

// increment adds one to the random part and reports whether it did not
// overflow.
func (id *ID) increment() bool {
	for i := len(id) - 1; i >= 6; i-- {
		id[i]++
		if id[i] != 0 {
			return true
		}
	}
	return false
}

func (id ID) millis() uint64 {
	return ulid.ULID(id).Time()
}

// errIDText is wrapped by every error of ParseID.
var errIDText = errors.New("not an event id")

// ParseID reads the text that [ID.String] writes: 26 characters of Crockford's
// base 32, in upper case. It rejects all other texts, so that one id has one
// text and texts may be compared as bytes.
func ParseID(s string) (ID, error) {
	if len(s) != idTextLen {
		return ID{}, fmt.Errorf("waybill: %w: %d characters, want %d", errIDText, len(s), idTextLen)
	}
	u, err := ulid.ParseStrict(s)
	switch {
	case errors.Is(err, ulid.ErrOverflow):
		return ID{}, fmt.Errorf("waybill: %w: larger than 128 bits", errIDText)
	case err != nil, u.String() != s:
		return ID{}, fmt.Errorf("waybill: %w: want only 0-9 and A-Z without I, L, O and U", errIDText)
	}
	return ID(u), nil
}

// String returns the id as 26 characters of Crockford's base 32.
func (id ID) String() string {
	return ulid.ULID(id).String()
}

// UUID returns the same 128 bits in the form that PostgreSQL shows in a uuid
// column.
func (id ID) UUID() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// IsZero reports whether the id was never set.
func (id ID) IsZero() bool {
	return id == ID{}
}

// Time returns the millisecond of the id's creation, by the clock of the
// process that created it.
func (id ID) Time() time.Time {
	return time.UnixMilli(int64(id.millis())).UTC()
}

// MarshalText implements [encoding.TextMarshaler]. The text of the zero id is
// empty.
func (id ID) MarshalText() ([]byte, error) {
	if id.IsZero() {
		return []byte{}, nil
	}
	return []byte(id.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. An empty text is the
// zero id; anything else must satisfy [ParseID].
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*id = ID{}
		return nil
	}
	parsed, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// MarshalBinary implements [encoding.BinaryMarshaler]; it returns the 16 bytes.
func (id ID) MarshalBinary() ([]byte, error) {
	return append([]byte(nil), id[:]...), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; it requires exactly
// 16 bytes.
func (id *ID) UnmarshalBinary(data []byte) error {
	if len(data) != len(id) {
		return fmt.Errorf("waybill: %w: %d bytes, want %d", errIDText, len(data), len(id))
	}
	copy(id[:], data)
	return nil
}
