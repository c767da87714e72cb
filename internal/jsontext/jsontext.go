// Package jsontext checks whether bytes and content types are JSON. Valid
// returns the same result as encoding/json's Valid, which a fuzz test verifies,
// at a fraction of the cost: every written payload is checked, and the standard
// scanner's call per byte dominated the client's cost of a write.
package jsontext

import (
	"encoding/binary"
	"strings"
)

// maxDepth is the maximum nesting of arrays and objects, as in encoding/json.
const maxDepth = 10000

// Valid reports whether data is one JSON value, with optional white space
// around it.
func Valid(data []byte) bool {
	s := scanner{data: data}
	s.space()
	if !s.value(0) {
		return false
	}
	s.space()
	return s.at == len(s.data)
}

// IsType reports whether a content type is JSON: none, application/json, or any
// type that ends in +json.
func IsType(contentType string) bool {
	const plain = "application/json"
	if contentType == "" || contentType == plain {
		return true
	}
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "" || media == plain || strings.HasSuffix(media, "+json")
}

// scanner scans JSON. Its methods return false where the text is not JSON.
type scanner struct {
	data []byte
	at   int
}

// peek returns the next byte, or 0 at the end: no JSON value starts with or
// contains a NUL.
func (s *scanner) peek() byte {
	if s.at < len(s.data) {
		return s.data[s.at]
	}
	return 0
}

// take advances over c if it is next.
func (s *scanner) take(c byte) bool {
	if s.peek() == c {
		s.at++
		return true
	}
	return false
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

func (s *scanner) value(depth int) bool {
	switch c := s.peek(); c {
	case '{':
		return depth < maxDepth && s.object(depth+1)
	case '[':
		return depth < maxDepth && s.array(depth+1)
	case '"':
		return s.text()
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	default:
		return (c == '-' || isDigit(c)) && s.number()
	}
}

func (s *scanner) object(depth int) bool {
	s.at++ // {
	s.space()
	if s.take('}') {
		return true
	}
	for {
		if s.peek() != '"' || !s.text() {
			return false
		}
		s.space()
		if !s.take(':') {
			return false
		}
		s.space()
		if !s.value(depth) {
			return false
		}
		s.space()
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

func (s *scanner) array(depth int) bool {
	s.at++ // [
	s.space()
	if s.take(']') {
		return true
	}
	for {
		if !s.value(depth) {
			return false
		}
		s.space()
		if s.take(']') {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

func (s *scanner) word(w string) bool {
	if len(s.data)-s.at < len(w) || string(s.data[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

func (s *scanner) number() bool {
	s.take('-')
	switch {
	case s.take('0'):
	case !s.digits():
		return false
	}
	if s.take('.') && !s.digits() {
		return false
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.at++
		if c := s.peek(); c == '+' || c == '-' {
			s.at++
		}
		return s.digits()
	}
	return true
}

// digits advances over digits and reports whether there was one.
func (s *scanner) digits() bool {
	start := s.at
	for isDigit(s.peek()) {
		s.at++
	}
	return s.at > start
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// Words of eight equal bytes, for comparing eight bytes at once.
const (
	ones     = 0x0101010101010101
	tops     = 0x8080808080808080
	quotes   = '"' * ones
	escapes  = '\\' * ones
	controls = 0x20 * ones
)

// plain reports whether none of eight bytes ends a string, escapes, or is a
// control character. It may return false unnecessarily when a byte's top bit is
// set; the slow path then decides.
func plain(w uint64) bool {
	q, e := w^quotes, w^escapes
	// A byte is zero if subtracting one borrows into its top bit, and below
	// 0x20 if subtracting that does.
	return ((q-ones)|(e-ones)|(w-controls)|w)&tops == 0
}

func (s *scanner) text() bool {
	s.at++ // "
	for {
		for len(s.data)-s.at >= 8 && plain(binary.LittleEndian.Uint64(s.data[s.at:])) {
			s.at += 8
		}
		if s.at == len(s.data) {
			return false
		}
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			return true
		case c == '\\':
			if !s.escape() {
				return false
			}
		case c < 0x20:
			return false
		default:
			s.at++
		}
	}
}

func (s *scanner) escape() bool {
	s.at++ // \
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at++
		return true
	case 'u':
		s.at++
		for range 4 {
			c := s.peek() | 0x20
			if !isDigit(s.peek()) && (c < 'a' || c > 'f') {
				return false
			}
			s.at++
		}
		return true
	}
	return false
}
