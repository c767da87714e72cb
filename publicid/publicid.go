package publicid

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
)

// Prefixed is a type that can have public ids.
type Prefixed interface {
	// PublicPrefix returns the prefix of every id of the type: 1 to 16
	// lower-case letters and digits, the first a letter. It must be the same
	// for every value of the type, including the zero value, and must never
	// change.
	PublicPrefix() string
}

// Checksummed may be implemented by a type to give its ids two more characters
// that detect typing errors.
type Checksummed interface {
	Prefixed
	// PublicChecksum is a marker and is never called.
	PublicChecksum()
}

// ErrInvalid is wrapped by every error about an invalid text.
var ErrInvalid = errors.New("publicid: not an id")

const (
	maxPrefix = 16
	ulidLen   = 26
)

// ID is the id of a T. The text of the zero value is empty. IDs are comparable
// and can be map keys.
type ID[T Prefixed] struct{ id waybill.ID }

// New returns a new id that is larger than every id that this process has
// created before. It panics if the prefix of T is invalid.
func New[T Prefixed]() ID[T] { return From[T](waybill.NewID()) }

// From returns the public id of the internal 16 bytes. It panics if the prefix
// of T is invalid.
func From[T Prefixed](id waybill.ID) ID[T] {
	prefixOf[T]()
	return ID[T]{id}
}

// Parse reads the text that [ID.String] writes. Another prefix, upper case,
// spaces and a wrong checksum are errors, which wrap [ErrInvalid] and never
// contain the text.
func Parse[T Prefixed](text string) (ID[T], error) {
	prefix, sum := prefixOf[T](), checksummed[T]()
	rest, ok := strings.CutPrefix(text, prefix+"_")
	if !ok {
		return ID[T]{}, fmt.Errorf("%w: missing prefix %s_", ErrInvalid, prefix)
	}
	want := ulidLen
	if sum {
		want += checkLen
	}
	if len(rest) != want {
		return ID[T]{}, fmt.Errorf("%w: %d characters after %s_, want %d", ErrInvalid, len(rest), prefix, want)
	}
	symbols, err := symbolsOf(rest)
	if err != nil {
		return ID[T]{}, err
	}
	if sum && !checks(symbols) {
		return ID[T]{}, fmt.Errorf("%w: checksum mismatch", ErrInvalid)
	}
	id, err := waybill.ParseID(strings.ToUpper(rest[:ulidLen]))
	if err != nil {
		// The only remaining error.
		return ID[T]{}, fmt.Errorf("%w: larger than 128 bits", ErrInvalid)
	}
	if id.IsZero() {
		return ID[T]{}, fmt.Errorf("%w: zero id", ErrInvalid)
	}
	return ID[T]{id}, nil
}

// String returns the public text, which is empty for the zero id.
func (id ID[T]) String() string {
	if id.IsZero() {
		return ""
	}
	text := prefixOf[T]() + "_" + strings.ToLower(id.id.String())
	if !checksummed[T]() {
		return text
	}
	symbols, err := symbolsOf(text[len(text)-ulidLen:])
	if err != nil {
		panic("publicid: a ULID is not in its own alphabet") // cannot happen
	}
	return text + checksum(symbols)
}

// PublicID returns the public text. If the result of an idempotent request
// embeds the id, the text becomes the reference of the result.
func (id ID[T]) PublicID() string { return id.String() }

// ULID returns the internal 16 bytes.
func (id ID[T]) ULID() waybill.ID { return id.id }

// Bytes returns the internal 16 bytes as a slice, for a column of 16 bytes; nil
// for the zero id.
func (id ID[T]) Bytes() []byte {
	if id.IsZero() {
		return nil
	}
	return append([]byte(nil), id.id[:]...)
}

// IsZero reports whether the id was never set.
func (id ID[T]) IsZero() bool { return id.id.IsZero() }

// Time returns the millisecond of the id's creation. The public text reveals
// that time.
func (id ID[T]) Time() time.Time { return id.id.Time() }

// MarshalText implements [encoding.TextMarshaler], and thereby JSON. The text
// of the zero id is empty.
func (id ID[T]) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler], and thereby JSON. An
// empty text is the zero id.
func (id *ID[T]) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*id = ID[T]{}
		return nil
	}
	parsed, err := Parse[T](string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// Value implements [driver.Valuer]: the text, or NULL for the zero id. For a
// column of 16 bytes pass [ID.Bytes].
func (id ID[T]) Value() (driver.Value, error) {
	if id.IsZero() {
		return nil, nil //nolint:nilnil // NULL
	}
	return id.String(), nil
}

// Scan implements [database/sql.Scanner]. It accepts the text, the 16 bytes, or
// NULL.
func (id *ID[T]) Scan(src any) error {
	switch src := src.(type) {
	case nil:
		*id = ID[T]{}
		return nil
	case string:
		return id.scan(src)
	case []byte:
		if len(src) == len(id.id) { // texts are longer
			*id = From[T](waybill.ID(src))
			return nil
		}
		return id.scan(string(src))
	default:
		return fmt.Errorf("%w: unsupported column type %T", ErrInvalid, src)
	}
}

func (id *ID[T]) scan(text string) error {
	parsed, err := Parse[T](text)
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// prefixOf returns the prefix of T. It panics if the prefix is invalid, which
// is a programming error, like an invalid pattern in regexp.MustCompile.
func prefixOf[T Prefixed]() string {
	var of T
	prefix := of.PublicPrefix()
	ok := 0 < len(prefix) && len(prefix) <= maxPrefix && 'a' <= prefix[0] && prefix[0] <= 'z'
	for _, c := range []byte(prefix) {
		ok = ok && ('a' <= c && c <= 'z' || '0' <= c && c <= '9')
	}
	if !ok {
		panic(fmt.Sprintf("publicid: invalid prefix %q of %T: want 1 to %d lower-case letters and digits, the first a letter", prefix, of, maxPrefix))
	}
	return prefix
}

func checksummed[T Prefixed]() bool {
	var of T
	_, ok := any(of).(Checksummed)
	return ok
}
