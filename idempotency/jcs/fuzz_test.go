package jcs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/waybillhq/waybill/idempotency/jcs"
)

var texts = []string{
	`{"a":1,"b":[true,false,null],"c":{"d":"x","é":-0.0}}`, `{"\ud83d\ude00":1,"\ufb33":2}`, `[1e21,1e-7,0.1,100,1.5e3,9007199254740993]`,
	`"\u0000\"\\/é\ue000😀"`, `{"a":1,"a":2}`, "\"\xff\"", `[[[[]]]]`, `-0`, `1e400`, `{"":{"":{}}}`, `"` + "\u2028" + `"`,
}

// FuzzSpelling: a text and any other spelling of the same value have the same
// exact form, and that form is a spelling of the value, too.
func FuzzSpelling(f *testing.F) {
	for i, text := range texts {
		f.Add([]byte(text), uint64(i))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		want, err := jcs.Exact(text)
		if err != nil {
			return
		}
		s := speller{rand.New(rand.NewPCG(seed, 0))}
		other := s.spell(t, text)
		if got, err := jcs.Exact(other); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q and %q mean the same, but become %q and %q (%v)", text, other, want, got, err)
		}
		if got, err := jcs.Canonical(want); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q is not canonical: %q (%v)", want, got, err)
		}
	})
}

// FuzzMeaning: two texts have the same exact form if and only if another
// decoder finds the same values in them.
func FuzzMeaning(f *testing.F) {
	for _, a := range texts {
		for _, b := range texts {
			f.Add([]byte(a), []byte(b))
		}
	}
	f.Add([]byte(`[10]`), []byte(`[1e1]`))
	f.Add([]byte(`[9007199254740993]`), []byte(`[9007199254740992]`))
	f.Add([]byte(`0.1`), []byte(`0.10000000000000001`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x, errX := jcs.Exact(a)
		y, errY := jcs.Exact(b)
		if errX != nil || errY != nil {
			return
		}
		if alike := meaning(t, a) == meaning(t, b); alike != bytes.Equal(x, y) {
			t.Errorf("%q and %q: same meaning %t, but become %q and %q", a, b, alike, x, y)
		}
	})
}

// FuzzStrict: every accepted text is JSON for the standard library, too.
func FuzzStrict(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if out, err := jcs.Canonical(text); err == nil && (!json.Valid(text) || !json.Valid(out)) {
			t.Errorf("%q is not JSON, but becomes %q", text, out)
		}
	})
}

func decode(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q was accepted: %v", text, err)
	}
	return v
}

// meaning writes a value so that equal values have equal texts; numbers are
// exact fractions.
func meaning(t *testing.T, text []byte) string { return describe(t, decode(t, text)) }

func describe(t *testing.T, v any) string {
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for name, value := range v {
			parts = append(parts, fmt.Sprintf("%x:%s", name, describe(t, value)))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ",") + "}"
	case []any:
		var parts []string
		for _, value := range v {
			parts = append(parts, describe(t, value))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case json.Number:
		return fraction(t, string(v)).String()
	case string:
		return fmt.Sprintf("%x.", v)
	default:
		return fmt.Sprint(v)
	}
}

// fraction returns a number's value. Zeros are handled first: 0e999999999 would
// not fit into memory.
func fraction(t *testing.T, number string) *big.Rat {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	if strings.Trim(mantissa, "-0.") == "" {
		return new(big.Rat)
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		t.Fatalf("%s is no number", number)
	}
	return r
}

// speller writes a value in an unusual but valid way.
type speller struct{ *rand.Rand }

func (s speller) spell(t *testing.T, text []byte) []byte {
	var b strings.Builder
	s.value(t, &b, decode(t, text))
	s.space(&b)
	return []byte(b.String())
}

func (s speller) space(b *strings.Builder) {
	for s.IntN(3) == 0 {
		b.WriteByte(" \t\r\n"[s.IntN(4)])
	}
}

func (s speller) value(t *testing.T, b *strings.Builder, v any) {
	s.space(b)
	switch v := v.(type) {
	case map[string]any:
		var names []string
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names) // so that a seed always gives the same result
		s.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		b.WriteByte('{')
		for i, name := range names {
			if i > 0 {
				b.WriteByte(',')
			}
			s.space(b)
			s.text(b, name)
			s.space(b)
			b.WriteByte(':')
			s.value(t, b, v[name])
			s.space(b)
		}
		s.space(b)
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, value := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			s.value(t, b, value)
			s.space(b)
		}
		s.space(b)
		b.WriteByte(']')
	case json.Number:
		s.number(b, string(v))
	case string:
		s.text(b, v)
	default:
		fmt.Fprint(b, map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
}

func (s speller) text(b *strings.Builder, text string) {
	b.WriteByte('"')
	for _, r := range text {
		short := strings.IndexRune("\"\\/\b\f\n\r\t", r)
		switch {
		case short >= 0 && s.IntN(2) == 0:
			b.WriteString(`\` + string(`"\/bfnrt`[short]))
		case r < 0x20 || r == '"' || r == '\\' || s.IntN(3) == 0:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(b, []string{`\u%04x`, `\u%04X`}[s.IntN(2)], unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// number moves the decimal point and adds zeros.
func (s speller) number(b *strings.Builder, number string) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	whole, part, _ := strings.Cut(mantissa, ".")
	sign := strings.HasPrefix(whole, "-")
	whole = strings.TrimPrefix(whole, "-")
	e := new(big.Int)
	e.SetString(strings.TrimPrefix(exponent+"0", "+"), 10)
	// exponent+"0" is a number even if exponent is empty.
	e.Div(e, big.NewInt(10))
	part += strings.Repeat("0", s.IntN(4))
	for range s.IntN(5) {
		if part != "" { // 1.25e3 is 12.5e2
			whole, part = whole+part[:1], part[1:]
			e.Sub(e, big.NewInt(1))
		}
	}
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if sign {
		b.WriteByte('-')
	}
	b.WriteString(whole)
	if part != "" {
		b.WriteString("." + part)
	}
	if e.Sign() != 0 || s.IntN(2) == 0 {
		b.WriteString([]string{"e", "E"}[s.IntN(2)])
		if e.Sign() >= 0 && s.IntN(2) == 0 {
			b.WriteByte('+')
		}
		b.WriteString(e.String())
	}
}
