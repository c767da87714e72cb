package publicid

import (
	"fmt"
	"strings"
)

// alphabet is Crockford's base 32 in lower case, without i, l, o and u.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// checkLen is the number of characters of a checksum.
const checkLen = 2

// symbolsOf returns the characters of a text as numbers below 32.
func symbolsOf(text string) ([]byte, error) {
	symbols := make([]byte, len(text))
	for i := range len(text) {
		n := strings.IndexByte(alphabet, text[i])
		if n < 0 {
			return nil, fmt.Errorf("%w: want only 0-9 and a-z without i, l, o and u", ErrInvalid)
		}
		symbols[i] = byte(n)
	}
	return symbols, nil
}

// The checksum is a Reed-Solomon code over the field of 32 elements: the sum of
// all symbols, and the sum of all symbols weighted with powers of alpha, are
// both zero. Two valid texts of up to 31 symbols differ in at least three
// places, so one or two wrong characters in any places never give another valid
// text. Swapping two characters counts as two wrong characters.

// alpha generates the field's multiplicative group.
const alpha = 2

// sums returns the two sums. The last symbol has power 0.
func sums(symbols []byte) (plain, weighted byte) {
	for _, s := range symbols {
		plain ^= s
		weighted = times(weighted, alpha) ^ s
	}
	return plain, weighted
}

func checks(symbols []byte) bool {
	plain, weighted := sums(symbols)
	return plain == 0 && weighted == 0
}

// checksum returns the two characters that make both sums zero.
func checksum(symbols []byte) string {
	plain, weighted := sums(append(symbols, 0, 0))
	// With x before y: x+y = plain and alpha·x+y = weighted.
	x := times(plain^weighted, inverse(1^alpha))
	y := plain ^ x
	return string([]byte{alphabet[x], alphabet[y]})
}

// times multiplies modulo x⁵+x²+1.
func times(a, b byte) byte {
	var product byte
	for ; b > 0; b >>= 1 {
		if b&1 == 1 {
			product ^= a
		}
		if a <<= 1; a >= 32 {
			a ^= 0b100101
		}
	}
	return product
}

// inverse returns the multiplicative inverse of a: its 30th power, because its
// 31st power is 1.
func inverse(a byte) byte {
	power := byte(1)
	for range 30 {
		power = times(power, a)
	}
	return power
}
