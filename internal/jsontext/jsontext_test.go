package jsontext_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/jsontext"
)

var samples = []string{
	``, ` `, `{}`, ` { } `, `[]`, `[ ]`, `null`, `nul`, `nulll`, `true`, `false`, `truefalse`, `"x"`, `"x`, `x"`, `"\"`, `"\\"`, `"\u12aF"`, `"\u12g0"`, `"\x"`,
	`0`, `-0`, `01`, `-`, `1.`, `.5`, `1.5e`, `1e+`, `1e+5`, `1E-5`, `0.0e0`, `1 2`, `{"a":1}`, `{"a":1,}`, `{"a"}`, `{a:1}`, `{"a":}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`,
	`{"a":[{"b":null},"c",-1.5e10,true,false]}`, "\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\xff\"", "\"\u00e9\u4e16\"", `"12345678"`, `"1234567\n"`, `"1234567` + "\n" + `"`,
	`{"a" 1}`, `{"a":1"b":2}`, `{"a":1 "b":2}`, `{a":1}`, `[1"a"]`, `[`, `[1`, `[1,`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `nulL`, `nu`, `tru`, `fals`, `-x`,
	` { "a" : 1 , "b" : [ 1 , 2 ] , "c" : { } } `, "\t[\n1\r,\t2\n]\r", `{"a":1 , "b":2 }`, `{ "a":{ "b":1 } }`,
	"\ufeff{}", `{"a":1}{"b":2}`, `"` + strings.Repeat("x", 1000) + `"`, "[\"\xc3\xa9aaaaaaaaaaaaaaa\"]",
	strings.Repeat("[", 10000) + strings.Repeat("]", 10000), strings.Repeat("[", 10001) + strings.Repeat("]", 10001), strings.Repeat(`{"a":`, 10001) + "1" + strings.Repeat("}", 10001),
}

func TestValidAgreesWithTheStandardLibrary(t *testing.T) {
	for _, s := range samples {
		if got, want := jsontext.Valid([]byte(s)), json.Valid([]byte(s)); got != want {
			t.Errorf("Valid(%.60q) is %v, want %v", s, got, want)
		}
	}
}

func FuzzValid(f *testing.F) {
	for _, s := range samples {
		if len(s) < 1000 { // mutating the very deep values takes too long
			f.Add([]byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := jsontext.Valid(data), json.Valid(data); got != want {
			t.Errorf("Valid(%q) is %v, want %v", data, got, want)
		}
	})
}

func BenchmarkValid(b *testing.B) {
	data := []byte(`{"note":"` + strings.Repeat("x", 489) + `"}`)
	b.Run("waybill", func(b *testing.B) {
		for b.Loop() {
			jsontext.Valid(data)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		for b.Loop() {
			json.Valid(data)
		}
	})
}

func ExampleValid() {
	fmt.Println(jsontext.Valid([]byte(`{"total": 9990}`)), jsontext.Valid([]byte(`{"total": 9990`)))
	// Output: true false
}
