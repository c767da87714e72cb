package publicid

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
)

// Prefixed is what an id can be of.
type Prefixed interface {
	// PublicPrefix returns what the text of every id begins with: 1 to 16 lower-case letters and digits, the first a letter. It must be the
	// same for every value of the type, the zero value among them, and never change.
	PublicPrefix() string
}

// Checksummed may be implemented by what an id is of, to give its ids two more characters that tell typing errors.
type Checksummed interface {
	Prefixed
	// PublicChecksum is only there to be there: it is not called.
	PublicChecksum()
}

// ErrInvalid is wrapped by every error that says what is wrong with a text.
var ErrInvalid = errors.New("publicid: not an id")

const (
	maxPrefix = 16
	ulidLen   = 26
)

// ID is the id of a T. The zero value is none; its text is empty. IDs can be compared, and be keys of a map.
type ID[T Prefixed] struct{ id waybill.ID }

// New returns a new id, larger than every one that this process has made before. It panics if T's prefix is not one.
func New[T Prefixed]() ID[T] { return From[T](waybill.NewID()) }

// From returns the public id for the 16 bytes that are used inside. It panics if T's prefix is not one.
func From[T Prefixed](id waybill.ID) ID[T] {
	prefixOf[T]()
	return ID[T]{id}
}

// Parse reads the one text that [ID.String] writes. Another prefix, upper case, spaces, a wrong checksum: all are errors, which wrap [ErrInvalid] and
// never repeat the text.
func Parse[T Prefixed](text string) (ID[T], error) {
	prefix, sum := prefixOf[T](), checksummed[T]()
	rest, ok := strings.CutPrefix(text, prefix+"_")
	if !ok {
		return ID[T]{}, fmt.Errorf("%w: it does not begin with %s_", ErrInvalid, prefix)
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
		return ID[T]{}, fmt.Errorf("%w: the checksum does not fit, so it is mistyped", ErrInvalid)
	}
	id, err := waybill.ParseID(strings.ToUpper(rest[:ulidLen]))
	if err != nil {
		return ID[T]{}, fmt.Errorf("%w: larger than 128 bits", ErrInvalid) // that is all that is left to be wrong
	}
	if id.IsZero() {
		return ID[T]{}, fmt.Errorf("%w: it is zero", ErrInvalid)
	}
	return ID[T]{id}, nil
}

// String returns the text that the outside sees; none for the zero id.
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

// PublicID returns the text, too. Embedded in the result of an idempotent request, the id becomes the result's reference.
func (id ID[T]) PublicID() string { return id.String() }

// ULID returns the 16 bytes that are used inside.
func (id ID[T]) ULID() waybill.ID { return id.id }

// Bytes returns them as a slice, for a column of 16 bytes; nil for the zero id.
func (id ID[T]) Bytes() []byte {
	if id.IsZero() {
		return nil
	}
	return append([]byte(nil), id.id[:]...)
}

// IsZero reports whether the id was never set.
func (id ID[T]) IsZero() bool { return id.id.IsZero() }

// Time returns the millisecond in which the id was made. Whoever sees the id sees that, too.
func (id ID[T]) Time() time.Time { return id.id.Time() }

// MarshalText implements [encoding.TextMarshaler], and so JSON. The zero id is an empty text.
func (id ID[T]) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler], and so JSON. An empty text is the zero id.
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

// Value implements [driver.Valuer]: the text, or NULL for the zero id. For a column of 16 bytes pass [ID.Bytes].
func (id ID[T]) Value() (driver.Value, error) {
	if id.IsZero() {
		return nil, nil //nolint:nilnil // NULL
	}
	return id.String(), nil
}

// Scan implements [database/sql.Scanner]. It takes the text, the 16 bytes, or NULL.
func (id *ID[T]) Scan(src any) error {
	switch src := src.(type) {
	case nil:
		*id = ID[T]{}
		return nil
	case string:
		return id.scan(src)
	case []byte:
		if len(src) == len(id.id) { // no text is that short
			*id = From[T](waybill.ID(src))
			return nil
		}
		return id.scan(string(src))
	default:
		return fmt.Errorf("%w: a column of %T", ErrInvalid, src)
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

// prefixOf returns T's prefix. It panics on a bad one: that is a mistake in the program, like a bad pattern in regexp.MustCompile.
func prefixOf[T Prefixed]() string {
	var of T
	prefix := of.PublicPrefix()
	ok := 0 < len(prefix) && len(prefix) <= maxPrefix && 'a' <= prefix[0] && prefix[0] <= 'z'
	for _, c := range []byte(prefix) {
		ok = ok && ('a' <= c && c <= 'z' || '0' <= c && c <= '9')
	}
	if !ok {
		panic(fmt.Sprintf("publicid: the prefix %q of %T is not 1 to %d lower-case letters and digits, the first a letter", prefix, of, maxPrefix))
	}
	return prefix
}

func checksummed[T Prefixed]() bool {
	var of T
	_, ok := any(of).(Checksummed)
	return ok
}
