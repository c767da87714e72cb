package jcs

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// A client chooses the numbers, so each must cost about the same. strconv reads
// subnormal numbers forty times as slowly as others: no number that can be
// exact may reach strconv. The result must equal that of strconv.
func TestSubnormalNumbersDoNotReachStrconv(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	read := func(text string) (float64, bool) {
		t.Helper()
		p := parser{}
		f, short := p.decimal([]byte(text)).subnormal()
		want, err := strconv.ParseFloat(text, 64)
		if short && (err != nil || math.Float64bits(f) != math.Float64bits(want)) {
			t.Errorf("%s is read as %v, want %v, %v", text, f, want, err)
		}
		return f, short
	}
	bits := []uint64{1, 2, 3, 1 << 51, 1<<51 + 1, 1<<52 - 2, 1<<52 - 1}
	for range 20_000 {
		bits = append(bits, 1+rnd.Uint64N(1<<52-1), 1+rnd.Uint64N(1<<rnd.IntN(52)))
	}
	for _, b := range bits {
		f := math.Float64frombits(b)
		for _, text := range []string{string(appendNumber(nil, f)), string(appendNumber(nil, -f)), strconv.FormatFloat(f, 'f', -1, 64)} {
			if _, short := read(text); !short {
				t.Errorf("%s takes the slow path", text)
			}
		}
		// And nearby numbers, which are rounded.
		read(strconv.FormatFloat(f, 'e', 18, 64))
		read(fmt.Sprintf("%d.%de-%d", 1+rnd.IntN(9), rnd.Uint64N(1e17), 305+rnd.IntN(25)))
	}
	for _, text := range []string{
		"2.225073858507201e-308", "2.2250738585072011e-308", "2.2250738585072012e-308", "2.2250738585072014e-308", "2.3e-308", "1e-307", "9.9e-308", "4.9e-324", "2.5e-324",
		"2.4703282292062327e-324", "2.4703282292062328e-324", "2e-324", "1e-400", "7.4e-324", "7.5e-324", "1", "0.1", "1e21", "1e-6",
	} {
		read(text)
	}
	// Exactly halfway between two: 2^-1075 and 3 × 2^-1075 have too many digits
	// for the short way, and both ways round to even.
	if f, _ := (decimal{digits: []byte("5"), exponent: -323}).subnormal(); f != 5e-324 {
		t.Errorf("0.5e-323 is read as %v", f)
	}
}

// BenchmarkExact compares numbers of both kinds: a mebibyte of one must not
// cost much more than a mebibyte of the other.
func BenchmarkExact(b *testing.B) {
	for _, number := range []string{"5e-324", "1.2345", "1.7976931348623157e308", "2.225073858507201e-308"} {
		text := append(bytes.TrimSuffix([]byte("["+strings.Repeat(number+",", 1<<20/(len(number)+1))), []byte(",")), ']')
		b.Run(number, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := Exact(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
