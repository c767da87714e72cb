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

// Hash is the fingerprint of a request: "v1:" and 64 lowercase hexadecimal
// digits. Two requests with the same key must have the same Hash, or the second
// is refused. The version is stored with the hash, so that a later version
// never mistakes an old record for a mismatch.
type Hash string

// hashVersion is the prefix of every Hash, and is part of the digest, too.
const hashVersion = "v1:"

// Valid reports whether h has the form of a Hash.
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

// HashJSON returns the hash of v encoded as JSON. The hash does not depend on
// the order of names, on white space, or on the spelling of strings and numbers
// (RFC 8785). All other content counts, so pass only the content that defines
// the operation: a retry must not differ by a timestamp or a trace id.
//
// A [json.RawMessage] is used unchanged. If it is not JSON that can be
// canonicalized without loss (a duplicate name, a number that a float64 cannot
// hold, …), its bytes are hashed: two spellings of one request may then get
// different hashes, but two different requests never get the same one.
//
// A string in v that is not valid UTF-8 is an error, because JSON encodes all
// such strings alike.
func HashJSON(v any) (Hash, error) {
	text, err := toJSON(v)
	if err != nil {
		return "", err
	}
	d := newDigest("json")
	d.json(text)
	return d.sum(), nil
}

// HashFields returns the hash of the named fields of a struct, or of a pointer
// to one: the fields that define the operation. Fields have their JSON names:
// the tag, or else the Go name. An unknown name is an error, and so is an empty
// list.
func HashFields(v any, fields ...string) (Hash, error) {
	if len(fields) == 0 {
		return "", errors.New("idempotency: HashFields: no fields")
	}
	s := reflect.ValueOf(v)
	for s.Kind() == reflect.Pointer && !s.IsNil() {
		s = s.Elem()
	}
	if s.Kind() != reflect.Struct {
		return "", fmt.Errorf("idempotency: HashFields: %T is not a struct", v)
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
		// The shallower field wins, as in encoding/json.
		if old, ok := byName[name]; !ok || len(f.Index) < len(old.Index) {
			byName[name] = f
		}
	}
	chosen := make(map[string]any, len(fields))
	for _, name := range fields {
		f, ok := byName[name]
		if !ok {
			return "", fmt.Errorf("idempotency: HashFields: %s has no JSON field %q", s.Type(), name)
		}
		// A nil embedded pointer has no fields.
		value, err := s.FieldByIndexErr(f.Index)
		if err != nil {
			chosen[name] = nil
			continue
		}
		chosen[name] = value.Interface()
	}
	return HashJSON(chosen)
}

// toJSON encodes v as JSON.
func toJSON(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("idempotency: hash: %w", err)
	}
	if replaced(text) {
		return nil, fmt.Errorf("idempotency: hash: a string in %T is not valid UTF-8", v)
	}
	return text, nil
}

// replaced reports whether json.Marshal replaced invalid UTF-8: only then does
// it write U+FFFD as an escape.
func replaced(text []byte) bool {
	for i := 0; ; {
		at := bytes.Index(text[i:], []byte(`\ufffd`))
		if at < 0 {
			return false
		}
		i += at
		before := len(text[:i]) - len(bytes.TrimRight(text[:i], `\`))
		if before%2 == 0 { // otherwise the backslash itself was escaped
			return true
		}
		i++
	}
}

// digest is a hash over length-prefixed fields, so that fields cannot run into
// each other.
type digest struct{ hash.Hash }

// newDigest starts a digest for one purpose, so that hashes for different
// purposes never collide.
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

// json adds a JSON text: its canonical form if that is lossless, otherwise its
// bytes under another label.
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
