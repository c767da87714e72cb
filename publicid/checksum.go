package publicid

import (
	"fmt"
	"strings"
)

// alphabet is Crockford's, in lower case: no i, l, o and u.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// checkLen is how many characters a checksum has.
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

// The checksum is a Reed-Solomon code over the field of 32 elements: the sum of all symbols, and the sum of all symbols each times another
// power of alpha, are both zero. Two valid texts of up to 31 symbols differ in at least three places, so one or two wrong characters, wherever
// they are, never make another valid text. Swapping two characters is two wrong ones.

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
	// With x in front of y: x+y = plain and alpha·x+y = weighted.
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

// inverse returns what a must be multiplied with to get 1: the 30th power, as the 31st is 1.
func inverse(a byte) byte {
	power := byte(1)
	for range 30 {
		power = times(power, a)
	}
	return power
}
