package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"reflect"
	"strings"

	"github.com/waybillhq/waybill/idempotency/jcs"
)

// Hash is the fingerprint of a request: "v1:" and 64 lower-case hexadecimal digits. Two requests under one key must have the same
// Hash, else the second is refused. The version is stored with it, so that a later version never takes an old record for a mismatch.
type Hash string

// hashVersion begins every Hash, and goes into the digest, too.
const hashVersion = "v1:"

// Valid reports whether h looks like a Hash.
func (h Hash) Valid() bool {
	digits, ok := strings.CutPrefix(string(h), hashVersion)
	if !ok || len(digits) != 2*sha256.Size {
		return false
	}
	for _, c := range []byte(digits) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// HashJSON returns the hash of what v is in JSON. It does not depend on the order of names, on white space, or on how strings and numbers are
// spelled (RFC 8785); nothing else is left out, so pass only what matters: a retry must not differ by a timestamp or a trace id.
//
// A [json.RawMessage] is taken as it is. If it is not JSON that can be canonicalised without loss (a name twice, a number that a float64
// cannot hold, …), its bytes are hashed as they are: two spellings of one request may then look different, two requests never look alike.
//
// A string in v that is not valid UTF-8 is an error, because JSON could not tell it from another such string.
func HashJSON(v any) (Hash, error) {
	text, err := toJSON(v)
	if err != nil {
		return "", err
	}
	d := newDigest("json")
	d.json(text)
	return d.sum(), nil
}

// HashFields returns the hash of some fields of a struct, or of a pointer to one: those that decide what the request means. They are named
// as in JSON: by their tag, else by their Go name. An unknown name is an error, as is none at all.
func HashFields(v any, fields ...string) (Hash, error) {
	if len(fields) == 0 {
		return "", errors.New("idempotency: HashFields needs at least one field")
	}
	s := reflect.ValueOf(v)
	for s.Kind() == reflect.Pointer && !s.IsNil() {
		s = s.Elem()
	}
	if s.Kind() != reflect.Struct {
		return "", fmt.Errorf("idempotency: HashFields needs a struct, not %T", v)
	}
	byName := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(s.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		// The shallower field wins, as in JSON.
		if old, ok := byName[name]; !ok || len(f.Index) < len(old.Index) {
			byName[name] = f
		}
	}
	chosen := make(map[string]any, len(fields))
	for _, name := range fields {
		f, ok := byName[name]
		if !ok {
			return "", fmt.Errorf("idempotency: %s has no field %q in JSON", s.Type(), name)
		}
		value, err := s.FieldByIndexErr(f.Index) // a nil embedded pointer has no fields
		if err != nil {
			chosen[name] = nil
			continue
		}
		chosen[name] = value.Interface()
	}
	return HashJSON(chosen)
}

// toJSON returns v as JSON text.
func toJSON(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("idempotency: hash: %w", err)
	}
	if replaced(text) {
		return nil, fmt.Errorf("idempotency: hash: a string in %T is not valid UTF-8, and JSON would hide which", v)
	}
	return text, nil
}

// replaced reports whether json.Marshal met invalid UTF-8: only then does it write U+FFFD as an escape.
func replaced(text []byte) bool {
	for i := 0; ; {
		at := bytes.Index(text[i:], []byte(`\ufffd`))
		if at < 0 {
			return false
		}
		i += at
		before := len(text[:i]) - len(bytes.TrimRight(text[:i], `\`))
		if before%2 == 0 { // else the backslash itself is what was escaped
			return true
		}
		i++
	}
}

// digest is a hash over fields that cannot run into each other: each has its length in front.
type digest struct{ hash.Hash }

// newDigest begins a digest for one purpose, so that hashes for different purposes never meet.
func newDigest(purpose string) digest {
	d := digest{sha256.New()}
	d.field([]byte("waybill idempotency " + hashVersion + purpose))
	return d
}

func (d digest) field(b []byte) {
	d.number(len(b))
	_, _ = d.Write(b) // a hash never fails
}

func (d digest) text(s string) { d.field([]byte(s)) }

func (d digest) number(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	_, _ = d.Write(b[:])
}

// json adds a JSON text: its canonical form where that loses nothing, else its bytes, under another name.
func (d digest) json(text []byte) {
	if canonical, err := jcs.Exact(text); err == nil {
		d.text("json")
		d.field(canonical)
		return
	}
	d.text("raw")
	d.field(text)
}

func (d digest) sum() Hash { return hashVersion + Hash(hex.EncodeToString(d.Sum(nil))) }
