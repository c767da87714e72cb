package jcs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is the maximum nesting depth of arrays and objects.
const MaxDepth = 64

// Errors of invalid texts. Every error of this package wraps one of them.
var (
	// ErrSyntax: the text is not JSON, or data follows the value.
	ErrSyntax = errors.New("not JSON")
	// ErrText: a string is not Unicode: invalid UTF-8, or a surrogate without
	// its other half.
	ErrText = errors.New("string is not Unicode")
	// ErrDuplicate: an object has a duplicate name.
	ErrDuplicate = errors.New("duplicate name")
	// ErrDepth: arrays and objects are nested deeper than [MaxDepth].
	ErrDepth = errors.New("nested too deeply")
	// ErrRange: a number is too large for a float64.
	ErrRange = errors.New("number out of range")
	// ErrInexact: the canonical text of a number has another value. Only
	// [Exact] reports it.
	ErrInexact = errors.New("number would be rounded")
)

// Canonical returns the canonical form of a JSON text. Numbers are rounded to
// float64.
func Canonical(json []byte) ([]byte, error) { return run(json, false) }

// Exact returns the canonical form of a JSON text if it has exactly the same
// meaning: a number that would be rounded to another decimal value is
// [ErrInexact]. 0.1 is exact in this sense (its text stays "0.1"),
// 9007199254740993 and 1e-400 are not.
func Exact(json []byte) ([]byte, error) { return run(json, true) }

func run(json []byte, exact bool) ([]byte, error) {
	p := parser{in: json, out: make([]byte, 0, len(json)), exact: exact}
	if err := p.value(); err != nil {
		return nil, err
	}
	if p.space(); p.pos < len(p.in) {
		return nil, p.fail(ErrSyntax)
	}
	return p.out, nil
}

// parser reads in and writes out in one pass. Only the members of an object are
// moved afterwards, if they are not sorted.
type parser struct {
	in    []byte
	pos   int
	out   []byte
	depth int
	exact bool
	// text holds decoded strings: the names of the open objects, and the
	// current string.
	text []byte
	// members are the members of the open objects.
	members []member
	scratch []byte
	digits  []byte
}

// member is a member of an object: the position of its name in parser.text, and
// the position of the whole member in parser.out.
type member struct {
	name, nameEnd int
	at, end       int
}

func (p *parser) fail(err error) error { return fmt.Errorf("jcs: %w (at byte %d)", err, p.pos) }

func (p *parser) space() {
	for p.pos < len(p.in) {
		switch p.in[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// next skips space and returns the next byte without consuming it, or 0 at the
// end. No JSON value starts with 0.
func (p *parser) next() byte {
	if p.space(); p.pos < len(p.in) {
		return p.in[p.pos]
	}
	return 0
}

func (p *parser) value() error {
	switch c := p.next(); {
	case c == '{':
		return p.nested(p.object)
	case c == '[':
		return p.nested(p.array)
	case c == '"':
		mark := len(p.text)
		if err := p.decode(); err != nil {
			return err
		}
		p.encode(p.text[mark:])
		p.text = p.text[:mark]
		return nil
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(p.in[p.pos:], []byte(word)) {
			p.pos += len(word)
			p.out = append(p.out, word...)
			return nil
		}
	}
	return p.fail(ErrSyntax)
}

// nested reads an array or an object, one level deeper.
func (p *parser) nested(read func() error) error {
	if p.depth == MaxDepth {
		return p.fail(ErrDepth)
	}
	p.depth++
	err := read()
	p.depth--
	return err
}

func (p *parser) array() error {
	p.pos++
	p.out = append(p.out, '[')
	if p.next() == ']' {
		p.pos++
		p.out = append(p.out, ']')
		return nil
	}
	for {
		if err := p.value(); err != nil {
			return err
		}
		switch p.next() {
		case ',':
			p.pos++
			p.out = append(p.out, ',')
		case ']':
			p.pos++
			p.out = append(p.out, ']')
			return nil
		default:
			return p.fail(ErrSyntax)
		}
	}
}

func (p *parser) object() error {
	p.pos++
	p.out = append(p.out, '{')
	first, text := len(p.members), len(p.text)
	if p.next() == '}' {
		p.pos++
		p.out = append(p.out, '}')
		return nil
	}
	for {
		if err := p.member(); err != nil {
			return err
		}
		switch p.next() {
		case ',':
			p.pos++
			p.out = append(p.out, ',')
			continue
		case '}':
			p.pos++
		default:
			return p.fail(ErrSyntax)
		}
		if err := p.order(p.members[first:]); err != nil {
			return err
		}
		p.members, p.text = p.members[:first], p.text[:text]
		p.out = append(p.out, '}')
		return nil
	}
}

func (p *parser) member() error {
	if p.next() != '"' {
		return p.fail(ErrSyntax)
	}
	m := member{name: len(p.text), at: len(p.out)}
	if err := p.decode(); err != nil {
		return err
	}
	m.nameEnd = len(p.text)
	p.encode(p.text[m.name:])
	if p.next() != ':' {
		return p.fail(ErrSyntax)
	}
	p.pos++
	p.out = append(p.out, ':')
	if err := p.value(); err != nil {
		return err
	}
	m.end = len(p.out)
	p.members = append(p.members, m)
	return nil
}

// order sorts the members of an object, the last value in out, by their names.
// A byte is moved at most once per enclosing level, so the depth limit keeps
// this linear.
func (p *parser) order(ms []member) error {
	compare := func(a, b member) int { return compareUTF16(p.text[a.name:a.nameEnd], p.text[b.name:b.nameEnd]) }
	start := ms[0].at
	sorted := slices.IsSortedFunc(ms, compare)
	if !sorted {
		slices.SortFunc(ms, compare)
	}
	for i := 1; i < len(ms); i++ {
		if compare(ms[i-1], ms[i]) == 0 {
			return p.fail(ErrDuplicate)
		}
	}
	if sorted {
		return nil
	}
	p.scratch = append(p.scratch[:0], p.out[start:]...)
	p.out = p.out[:start]
	for i, m := range ms {
		if i > 0 {
			p.out = append(p.out, ',')
		}
		p.out = append(p.out, p.scratch[m.at-start:m.end-start]...)
	}
	return nil
}

// compareUTF16 compares valid UTF-8 as if it were UTF-16, unit by unit. The
// order equals that of the bytes, except for characters outside the basic
// plane: in UTF-16 they begin with a surrogate, which is less than U+E000 to
// U+FFFF; in UTF-8 they begin with 0xF0 or more, which is greater than the 0xEE
// and 0xEF of U+E000 to U+FFFF.
func compareUTF16(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if (x >= 0xF0) != (y >= 0xF0) && x >= 0xEE && y >= 0xEE {
			x, y = y, x
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// decode reads a string and appends its characters to text.
func (p *parser) decode() error {
	p.pos++
	for p.pos < len(p.in) {
		switch c := p.in[p.pos]; {
		case c == '"':
			p.pos++
			return nil
		case c == '\\':
			if err := p.escape(); err != nil {
				return err
			}
		case c < 0x20:
			return p.fail(ErrSyntax)
		case c < utf8.RuneSelf:
			p.text = append(p.text, c)
			p.pos++
		default:
			r, n := utf8.DecodeRune(p.in[p.pos:])
			if r == utf8.RuneError && n == 1 {
				return p.fail(ErrText)
			}
			p.text = append(p.text, p.in[p.pos:p.pos+n]...)
			p.pos += n
		}
	}
	return p.fail(ErrSyntax)
}

func (p *parser) escape() error {
	if p.pos+1 == len(p.in) {
		return p.fail(ErrSyntax)
	}
	c := p.in[p.pos+1]
	if c == 'u' {
		return p.unicode()
	}
	const letters, meaning = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	i := bytes.IndexByte([]byte(letters), c)
	if i < 0 {
		return p.fail(ErrSyntax)
	}
	p.text = append(p.text, meaning[i])
	p.pos += 2
	return nil
}

// unicode reads \uXXXX, or two of them for a character outside the basic plane.
func (p *parser) unicode() error {
	r, ok := p.unit()
	if !ok {
		return p.fail(ErrSyntax)
	}
	if utf16.IsSurrogate(r) {
		if !bytes.HasPrefix(p.in[p.pos:], []byte(`\u`)) {
			return p.fail(ErrText)
		}
		low, ok := p.unit()
		if !ok {
			return p.fail(ErrSyntax)
		}
		// DecodeRune returns U+FFFD for anything but a high and a low half, and
		// no valid pair encodes U+FFFD.
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return p.fail(ErrText)
		}
	}
	p.text = utf8.AppendRune(p.text, r)
	return nil
}

// unit reads the four digits of \uXXXX.
func (p *parser) unit() (rune, bool) {
	if len(p.in)-p.pos < 6 {
		return 0, false
	}
	var r rune
	for _, c := range p.in[p.pos+2 : p.pos+6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	p.pos += 6
	return r, true
}

// encode writes a string with the escapes that the RFC requires, and no others.
func (p *parser) encode(text []byte) {
	const hex = "0123456789abcdef"
	p.out = append(p.out, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			p.out = append(p.out, '\\', c)
		case c >= 0x20:
			p.out = append(p.out, c)
		case c == '\b':
			p.out = append(p.out, `\b`...)
		case c == '\t':
			p.out = append(p.out, `\t`...)
		case c == '\n':
			p.out = append(p.out, `\n`...)
		case c == '\f':
			p.out = append(p.out, `\f`...)
		case c == '\r':
			p.out = append(p.out, `\r`...)
		default:
			p.out = append(p.out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	p.out = append(p.out, '"')
}
