package jcs_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/idempotency/jcs"
)

// The samples of RFC 8785, sections 3.2.2 and 3.2.3.
func TestSamplesOfTheRFC(t *testing.T) {
	for name, c := range map[string][2]string{
		"types": {
			`{
			  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
			  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
			  "literals": [null, true, false]
			}`,
			`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		},
		"order of names": {
			`{
			  "\u20ac": "Euro Sign",
			  "\r": "Carriage Return",
			  "\ufb33": "Hebrew Letter Dalet With Dagesh",
			  "1": "One",
			  "\ud83d\ude00": "Emoji: Grinning Face",
			  "\u0080": "Control",
			  "\u00f6": "Latin Small Letter O With Diaeresis"
			}`,
			`{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",` +
				`"😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		},
	} {
		t.Run(name, func(t *testing.T) { want(t, c[0], c[1]) })
	}
}

// The table of RFC 8785, appendix B.
func TestNumbersOfTheRFC(t *testing.T) {
	for bits, text := range map[uint64]string{
		0x0000000000000000: "0",
		0x8000000000000000: "0",
		0x0000000000000001: "5e-324",
		0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308",
		0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992",
		0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000",
		0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23",
		0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000",
		0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21",
		0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001",
		0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325",
		0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334",
		0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333",
		0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		f := math.Float64frombits(bits)
		want(t, strconv.FormatFloat(f, 'e', 30, 64), text)
		want(t, strconv.FormatFloat(f, 'g', -1, 64), text)
		want(t, text, text)
	}
}

func TestCanonical(t *testing.T) {
	zeros := strings.Repeat("0", 100_000)
	for in, out := range map[string]string{
		"\t\r\n 1 ":                  "1",
		"-0":                         "0",
		"-0.0e9":                     "0",
		"0e99999999999999999999":     "0",
		"1E+2":                       "100",
		"12.5e299":                   "1.25e+300",
		"-1.5e-290":                  "-1.5e-290",
		"10e-1":                      "1",
		"1e0000000000000000000001":   "10",
		"0." + zeros + "1e100001":    "1", // strconv alone says 0
		"1" + zeros + "e-100000":     "1",
		"1e-400":                     "0",
		"1e-99999999999999999999999": "0",
		"9007199254740993":           "9007199254740992",
		`[ ]`:                        `[]`,
		`{ }`:                        `{}`,
		`[1 , [2,{}] ]`:              `[1,[2,{}]]`,
		`[2,1]`:                      `[2,1]`,
		`{"b":{"d":1,"c":2},"a":0}`:  `{"a":0,"b":{"c":2,"d":1}}`,
		`{"b":1,"":2,"B":3,"aa":4}`:  `{"":2,"B":3,"aa":4,"b":1}`,
		`"\u0000\u001F\u007f\u2028"`: `"\u0000\u001f` + "\u007f\u2028" + `"`,
		`"\b\t\n\f\r\/"`:             `"\b\t\n\f\r/"`,
		`"\ud83d\ude00"`:             `"😀"`,
		`"\uFFFD"`:                   "\"\ufffd\"",
		`"e\u0301"`:                  "\"e\u0301\"", // no normalization
		`"é"`:                        `"é"`,
	} {
		want(t, in, out)
	}
}

func want(t *testing.T, in, out string) {
	t.Helper()
	got, err := jcs.Canonical([]byte(in))
	if err != nil || string(got) != out {
		t.Errorf("%.80q becomes %.200s (%v), want %s", in, got, err, out)
	}
}

func TestRefused(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	if _, err := jcs.Canonical([]byte(deep(jcs.MaxDepth))); err != nil {
		t.Error(err)
	}
	for in, want := range map[string]error{
		"":                            jcs.ErrSyntax,
		" ":                           jcs.ErrSyntax,
		"nul":                         jcs.ErrSyntax,
		"nulls":                       jcs.ErrSyntax,
		"NaN":                         jcs.ErrSyntax,
		"1 2":                         jcs.ErrSyntax,
		"{}}":                         jcs.ErrSyntax,
		"\ufeff1":                     jcs.ErrSyntax,
		"\x001":                       jcs.ErrSyntax,
		"1\x00":                       jcs.ErrSyntax,
		"[1,]":                        jcs.ErrSyntax,
		"[1":                          jcs.ErrSyntax,
		"[,]":                         jcs.ErrSyntax,
		`{"a":1,}`:                    jcs.ErrSyntax,
		`{"a"}`:                       jcs.ErrSyntax,
		`{"a":}`:                      jcs.ErrSyntax,
		`{a:1}`:                       jcs.ErrSyntax,
		`{"a":1`:                      jcs.ErrSyntax,
		"01":                          jcs.ErrSyntax,
		"-":                           jcs.ErrSyntax,
		"+1":                          jcs.ErrSyntax,
		".5":                          jcs.ErrSyntax,
		"1.":                          jcs.ErrSyntax,
		"1e":                          jcs.ErrSyntax,
		"1e+":                         jcs.ErrSyntax,
		"0x1":                         jcs.ErrSyntax,
		"1_0":                         jcs.ErrSyntax,
		`"a`:                          jcs.ErrSyntax,
		`"\`:                          jcs.ErrSyntax,
		`"\x"`:                        jcs.ErrSyntax,
		`"\u12"`:                      jcs.ErrSyntax,
		`"\u12g4"`:                    jcs.ErrSyntax,
		"\"\n\"":                      jcs.ErrSyntax,
		"\"\xff\"":                    jcs.ErrText,
		"\"\xc0\xaf\"":                jcs.ErrText, // overlong
		"\"\xed\xa0\x80\"":            jcs.ErrText, // a surrogate in UTF-8
		`"\ud83d"`:                    jcs.ErrText,
		`"\ude00"`:                    jcs.ErrText,
		`"\ude00\ud83d"`:              jcs.ErrText,
		`"\ud83d\ud83d"`:              jcs.ErrText,
		`"\ud83dx"`:                   jcs.ErrText,
		`{"a":1,"a":1}`:               jcs.ErrDuplicate,
		`{"a":1,"b":2,"\u0061":3}`:    jcs.ErrDuplicate,
		`[{"b":0,"a":{"x":1,"x":2}}]`: jcs.ErrDuplicate,
		deep(jcs.MaxDepth + 1):        jcs.ErrDepth,
		"1e309":                       jcs.ErrRange,
		"-1e99999999999999999999":     jcs.ErrRange,
	} {
		if got, err := jcs.Canonical([]byte(in)); !errors.Is(err, want) {
			t.Errorf("%.80q becomes %.80s, %v; want the error %v", in, got, err, want)
		}
	}
}

func TestExactRefusesWhatWouldBeRounded(t *testing.T) {
	for _, in := range []string{"9007199254740993", "1e-400", "0.1000000000000000055511151231257827", "123456789012345678901234567890", "-1e-400"} {
		if got, err := jcs.Exact([]byte("[" + in + "]")); !errors.Is(err, jcs.ErrInexact) {
			t.Errorf("%s becomes %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"0.1", "-0", "1e23", "9007199254740992", "100000000000000000000000e-2", "5e-324", "1.50", "0e-99999999"} {
		if _, err := jcs.Exact([]byte(in)); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// Each of these inputs makes some implementation quadratic. Doubling the input
// ten times must not take a hundred times the work, measured in allocated bytes
// and by the test's own deadline, not by a clock.
func TestLinearTime(t *testing.T) {
	const n = 1 << 20
	names := &strings.Builder{}
	for i := n / 16; i > 0; i-- {
		names.WriteString(`"` + strconv.Itoa(i) + `":0,`)
	}
	for what, in := range map[string]string{
		"open brackets":   strings.Repeat("[", n),
		"open objects":    strings.Repeat(`{"a":`, n),
		"names":           "{" + names.String() + `"":0}`,
		"nested names":    strings.Repeat(`{"b":0,"a":`, 64) + `"` + strings.Repeat("x", n) + `"` + strings.Repeat("}", 64),
		"a long number":   strings.Repeat("9", n),
		"a long exponent": "1e" + strings.Repeat("9", n),
		"escapes":         `"` + strings.Repeat(`\u0000`, n) + `"`,
		"surrogates":      `"` + strings.Repeat(`\ud83d`, n) + `"`,
		"backslashes":     `"` + strings.Repeat(`\\`, n),
		"numbers":         "[" + strings.Repeat("1e-7,", n) + "1]",
	} {
		t.Run(what, func(*testing.T) {
			_, _ = jcs.Canonical([]byte(in)) // some are refused
			_, _ = jcs.Exact([]byte(in))
		})
	}
}

func BenchmarkCanonical(b *testing.B) {
	in := []byte(`{"items":[{"sku":"A-1","quantity":2,"price":19.90},{"sku":"B-7","quantity":1,"price":5}],"customer":"cus_1","note":"Grüße"}`)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jcs.Exact(in); err != nil {
			b.Fatal(err)
		}
	}
}
