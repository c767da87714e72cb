package jcs

import (
	"bytes"
	"math"
	"math/big"
	"strconv"
	"sync"
)

// number reads a number and writes it as ECMAScript does.
func (p *parser) number() error {
	token := p.numberToken()
	if token == nil {
		return p.fail(ErrSyntax)
	}
	p.digits = p.digits[:0]
	d := p.decimal(token)
	f, ok := d.float()
	if !ok {
		return p.fail(ErrRange)
	}
	start := len(p.out)
	p.out = appendNumber(p.out, f)
	if p.exact && !d.equal(p.decimal(p.out[start:])) {
		return p.fail(ErrInexact)
	}
	return nil
}

// numberToken consumes the longest prefix that is a number in JSON's grammar;
// nil if there is none.
func (p *parser) numberToken() []byte {
	start := p.pos
	if p.in[p.pos] == '-' {
		p.pos++
	}
	whole := p.digitsAt()
	if whole == 0 || whole > 1 && p.in[p.pos-whole] == '0' {
		return nil
	}
	if p.pos < len(p.in) && p.in[p.pos] == '.' {
		p.pos++
		if p.digitsAt() == 0 {
			return nil
		}
	}
	if p.pos < len(p.in) && p.in[p.pos]|0x20 == 'e' {
		p.pos++
		if p.pos < len(p.in) && (p.in[p.pos] == '+' || p.in[p.pos] == '-') {
			p.pos++
		}
		if p.digitsAt() == 0 {
			return nil
		}
	}
	return p.in[start:p.pos]
}

// digitsAt consumes digits and returns their number.
func (p *parser) digitsAt() int {
	start := p.pos
	for p.pos < len(p.in) && '0' <= p.in[p.pos] && p.in[p.pos] <= '9' {
		p.pos++
	}
	return p.pos - start
}

// decimal is a number as written, with all of its digits: ±0.digits ×
// 10^exponent. No digits mean zero; neither the first nor the last digit is
// '0'. Two decimals therefore have the same value if and only if they are
// identical.
type decimal struct {
	negative bool
	digits   []byte
	exponent int64
}

// farAway exceeds every exponent that could matter, and adding the length of
// any text to it does not overflow.
const farAway = 1 << 60

// decimal parses a token of JSON's grammar. The digits are in p.digits, so two
// decimals can be compared until it is reset.
func (p *parser) decimal(token []byte) decimal {
	var d decimal
	if token[0] == '-' {
		d.negative, token = true, token[1:]
	}
	if i := bytes.IndexAny(token, "eE"); i >= 0 {
		d.exponent = exponentOf(token[i+1:])
		token = token[:i]
	}
	whole, fraction, _ := bytes.Cut(token, []byte("."))
	start := len(p.digits)
	p.digits = append(append(p.digits, whole...), fraction...)
	all := p.digits[start:]
	significant := bytes.TrimLeft(all, "0")
	d.exponent += int64(len(whole) - (len(all) - len(significant)))
	d.digits = bytes.TrimRight(significant, "0")
	if len(d.digits) == 0 {
		return decimal{} // all zeros are equal, including -0 and 0e99
	}
	return d
}

// exponentOf reads an exponent of any length.
func exponentOf(text []byte) int64 {
	negative := text[0] == '-'
	text = bytes.TrimLeft(bytes.TrimLeft(text, "+-"), "0")
	var e int64
	for _, c := range text {
		if e = e*10 + int64(c-'0'); e >= farAway/10 {
			e = farAway
			break
		}
	}
	if negative {
		return -e
	}
	return e
}

func (d decimal) equal(o decimal) bool {
	return d.negative == o.negative && d.exponent == o.exponent && bytes.Equal(d.digits, o.digits)
}

// float returns the nearest float64, and false if it would be infinite. It
// passes a normalized text to strconv, which does not read all digits of an
// exponent and would get 0.00…01e100001 wrong.
func (d decimal) float() (float64, bool) {
	switch {
	case len(d.digits) == 0 || d.exponent < -400:
		return 0, true
	case d.exponent > 400:
		return 0, false
	}
	if f, ok := d.subnormal(); ok {
		return f, true
	}
	text := make([]byte, 0, len(d.digits)+8)
	if d.negative {
		text = append(text, '-')
	}
	text = append(append(text, "0."...), d.digits...)
	text = strconv.AppendInt(append(text, 'e'), d.exponent, 10)
	f, err := strconv.ParseFloat(string(text), 64)
	return f, err == nil
}

const (
	// subnormalBits is the exponent of the power of two of which subnormal
	// numbers are multiples: 2^-1074.
	subnormalBits = 1074
	// smallestNormal is the smallest normal number, as such a multiple.
	smallestNormal = 1 << 52
	// largestTiny is above the decimal exponent of every subnormal number: they
	// are below 0.3 × 10^-307.
	largestTiny = -307
	// maxTiny is the number of digits that fit into a uint64.
	maxTiny = 19
)

// powers are the powers of ten from 10^307 on that subnormal divides by,
// computed on first use.
var powers = sync.OnceValue(func() []*big.Int {
	list := []*big.Int{new(big.Int).Exp(big.NewInt(10), big.NewInt(-largestTiny), nil)}
	for len(list) <= maxTiny+400+largestTiny {
		list = append(list, new(big.Int).Mul(list[len(list)-1], big.NewInt(10)))
	}
	return list
})

// subnormal is float for subnormal numbers that are short enough; every number
// that keeps its exact text is. It reports false for all others.
//
// strconv has no fast path for subnormal numbers: 1 MiB of 5e-324 took it 2.8
// s, and a client can send that with every request. subnormal takes one
// division of about seventeen words.
func (d decimal) subnormal() (float64, bool) {
	if d.exponent > largestTiny || d.exponent < -400 || len(d.digits) > maxTiny {
		return 0, false
	}
	var digits uint64
	for _, c := range d.digits {
		digits = digits*10 + uint64(c-'0')
	}
	// The value is digits / 10^k: a multiple of 2^-1074, and a remainder.
	k := int64(len(d.digits)) - d.exponent
	numerator := new(big.Int).SetUint64(digits)
	numerator.Lsh(numerator, subnormalBits)
	denominator := powers()[k+largestTiny]
	rest := new(big.Int)
	multiple, _ := numerator.QuoRem(numerator, denominator, rest)
	if !multiple.IsUint64() || multiple.Uint64() >= smallestNormal {
		return 0, false
	}
	bits := multiple.Uint64()
	switch rest.Lsh(rest, 1).Cmp(denominator) { // ties go to even
	case 1:
		bits++
	case 0:
		bits += bits & 1
	}
	if d.negative {
		bits |= 1 << 63
	}
	return math.Float64frombits(bits), true
}

// appendNumber writes a finite float64 as ECMAScript's Number::toString does:
// with the shortest digits that identify it, and without an exponent from 1e-6
// to 1e21.
func appendNumber(out []byte, f float64) []byte {
	if f == 0 {
		return append(out, '0') // also for -0
	}
	if abs := math.Abs(f); 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(out, f, 'f', -1, 64)
	}
	out = strconv.AppendFloat(out, f, 'e', -1, 64)
	// strconv writes at least two digits of an exponent, ECMAScript only as
	// many as needed.
	if n := len(out); out[n-2] == '0' && (out[n-3] == '-' || out[n-3] == '+') {
		out[n-2] = out[n-1]
		out = out[:n-1]
	}
	return out
}
