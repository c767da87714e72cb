package idempotency_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/idempotency"
)

func hashJSON(t testing.TB, v any) idempotency.Hash {
	t.Helper()
	h, err := idempotency.HashJSON(v)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Databases contain these hashes: another way to compute them needs another
// version.
func TestHashesStayAsTheyAre(t *testing.T) {
	got := map[string]idempotency.Hash{
		"json": hashJSON(t, map[string]any{"b": 1, "a": "é"}),
		"raw":  hashJSON(t, json.RawMessage(`{"a":1,"a":2}`)),
		"request": idempotency.HashRequest(idempotency.RequestContent{
			Method: "POST", Operation: "POST /orders", Path: "/orders", Query: "b=1&a=2", ContentType: "application/json; charset=UTF-8", Body: []byte(`{"b":1.0}`),
		}),
	}
	for name, r := range map[string]idempotency.RequestContent{
		"a digest":             {ContentEncoding: "gzip", Digest: "sha-256=:x:"},
		"an encoded body":      {ContentEncoding: "gzip", Body: []byte("x")},
		"a raw body":           {ContentType: "text/plain; b=2; a=1", Body: []byte("x")},
		"a form":               {ContentType: "application/x-www-form-urlencoded", Body: []byte("b=1&a=2&b=0")},
		"a broken form":        {ContentType: "application/x-www-form-urlencoded", Body: []byte("b=%zz")},
		"parts":                {ContentType: "multipart/mixed; boundary=x; type=y", Body: []byte("--x\r\nA: 1\r\nA: 2\r\nB: 3\r\n\r\n1\r\n--x\r\n\r\n2\r\n--x--\r\n")},
		"broken parts":         {ContentType: "multipart/mixed; boundary=x", Body: []byte("--x")},
		"JSON that is no JSON": {ContentType: "application/x+json", Body: []byte("{")},
	} {
		got[name] = idempotency.HashRequest(r)
	}
	for name, want := range map[string]idempotency.Hash{
		"json":                 "v1:46a25cec1e5520417efab39f3744c75fddde84ddadafb7a1441acb8ade6fd20c",
		"raw":                  "v1:3a6dc4577cbf33c30d628c3d40cfdc56288d748c551558f69a5967169404e10f",
		"request":              "v1:2467a939b485ee63b101ac5ad147cfadcc2625b439f9cdc217ca59729aba3005",
		"a digest":             "v1:efaaf2d2168a863c0965368b16dc06e240f050f2f1dabc170fe852e96ad7f9f3",
		"an encoded body":      "v1:082511ce9bfb2d1177aed0604d68e2c94b0908022f7c1f6ac50e986727cd61ff",
		"a raw body":           "v1:f503c069db41a7615e1fdef9d9a47ab2673060ee02f2869e894b41b53c0a5293",
		"a form":               "v1:8c2dbc63fc5aee0f295b8ccbc9355ac08152a1f0fac7db14af561560925ae4d1",
		"a broken form":        "v1:0315a80a4588d27e03eb7054df489d0c24500d706b9d94d019fe53db84afaae4",
		"parts":                "v1:eab31188b12b0555aac3e7946d450e3615d5ef57f6d30e36622b2208234b96a4",
		"broken parts":         "v1:9bde38785702cd47277ddc6f013ad81c5e68a705aab2a859eaeff7b9bb6b51c9",
		"JSON that is no JSON": "v1:2cbecb31642ed6022387de6058c02725606985d64d9f0b83dd1b3869d020bfb5",
	} {
		if got[name] != want || !got[name].Valid() {
			t.Errorf("%s: %s", name, got[name])
		}
	}
}

func TestHashIsValid(t *testing.T) {
	digits := strings.Repeat("0123456789abcdef", 4)
	for h, want := range map[string]bool{
		"v1:" + digits: true, "": false, "v1:": false, digits: false, "v2:" + digits: false, "v1:" + digits + "0": false, "v1:" + digits[1:]: false,
		"v1:" + strings.ToUpper(digits): false, "v1:" + digits[1:] + "g": false, "v1:" + digits[1:] + "/": false, "v1:" + digits[1:] + ":": false,
		"v1:" + digits[1:] + "`": false,
	} {
		if got := idempotency.Hash(h).Valid(); got != want {
			t.Errorf("%q is valid: %v, want %v", h, got, want)
		}
	}
}

func TestHashJSONFollowsTheMeaning(t *testing.T) {
	same := [][]string{
		{`{"a":1,"b":[1,2]}`, ` { "b" : [ 1.0 , 2e0 ] , "\u0061" : 10e-1 } `},
		{`-0`, `0`, `0.0e7`},
		{`"😀"`, `"\ud83d\ude00"`},
		{`[1,2]`},
		{`[2,1]`},
		{`{"a":null}`},
		{`{}`},
		{`9007199254740993`},
		{`9007199254740992`},
		{`1e-400`},
		{"\"\u00e9\""},
		{"\"e\u0301\""}, // no normalization
		{`{"a":1,"a":2}`},
		{`{"a":2}`},
		{"\"\xff\""},
		{"\"\xfe\""},
		{"\"\ufffd\""},
		{`"\ud83d"`},
		{`"\ude00"`},
		{strings.Repeat("[", 65) + strings.Repeat("]", 65)},
		{`{} {}`},
		{`not JSON`},
		{``},
	}
	seen := map[idempotency.Hash]int{}
	for i, texts := range same {
		for _, text := range texts {
			h := hashJSON(t, json.RawMessage(text))
			if j, ok := seen[h]; ok && j != i {
				t.Errorf("%q has the hash of %q", text, same[j])
			}
			seen[h] = i
		}
		if len(seen) != i+1 {
			t.Fatalf("%q have different hashes", texts)
		}
	}
}

func TestHashJSONRefusesWhatItCannotTellApart(t *testing.T) {
	for _, v := range []any{"\xff", map[string]int{"a\xff": 1}, struct{ S string }{"x\xfe"}, make(chan int)} {
		if h, err := idempotency.HashJSON(v); err == nil || h != "" {
			t.Errorf("%v: %s", v, h)
		}
	}
	for _, v := range []any{"\ufffd", `\ufffd`, `\\ufffd`} { // these are valid
		hashJSON(t, v)
	}
}

func TestHashFields(t *testing.T) {
	type base struct {
		Tenant string `json:"tenant"`
	}
	type order struct {
		base
		SKU      string `json:"sku"`
		Quantity int    `json:"quantity,omitempty"`
		Note     string
		TraceID  string `json:"trace_id"`
		Secret   string `json:"-"`
		hidden   int
	}
	a := order{base{"t"}, "A-1", 2, "n", "trace 1", "s", 1}
	b := a
	b.TraceID, b.Secret, b.hidden = "trace 2", "other", 2
	fields := []string{"tenant", "sku", "quantity", "Note"}
	of := func(v any, fields ...string) idempotency.Hash {
		h, err := idempotency.HashFields(v, fields...)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if of(a, fields...) != of(&b, "Note", "quantity", "sku", "tenant") {
		t.Error("an unselected field or the order makes a difference")
	}
	seen := map[idempotency.Hash]bool{of(a, fields...): true}
	for _, change := range []func(o *order){
		func(o *order) { o.Tenant = "u" }, func(o *order) { o.SKU = "" }, func(o *order) { o.Quantity = 0 }, func(o *order) { o.Note = "N" },
	} {
		c := a
		change(&c)
		if h := of(c, fields...); seen[h] {
			t.Errorf("%+v looks like another", c)
		} else {
			seen[h] = true
		}
	}
	for _, fields := range [][]string{{}, {"SKU"}, {"Secret"}, {"-"}, {"hidden"}, {"base"}, {"sku", "skoo"}} {
		if _, err := idempotency.HashFields(a, fields...); err == nil {
			t.Errorf("%v are accepted", fields)
		}
	}
	for _, v := range []any{nil, 1, map[string]int{"sku": 1}, (*order)(nil)} {
		if _, err := idempotency.HashFields(v, "sku"); err == nil {
			t.Errorf("%T is accepted", v)
		}
	}
}

func TestHashRequestFollowsTheMeaning(t *testing.T) {
	const form, multi = "application/x-www-form-urlencoded", "multipart/form-data; boundary="
	parts := func(boundary, value string) []byte {
		return fmt.Appendf(nil, "--%[1]s\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n%[2]s\r\n--%[1]s--\r\n", boundary, value)
	}
	base := idempotency.RequestContent{Method: "POST", Operation: "o", Path: "/p", Query: "a=1&b=2&a=3", ContentType: "application/json", Body: []byte(`{"a":1}`)}
	with := func(change func(r *idempotency.RequestContent)) idempotency.RequestContent {
		r := base
		change(&r)
		return r
	}
	body := func(contentType string, body []byte) idempotency.RequestContent {
		return with(func(r *idempotency.RequestContent) { r.ContentType, r.Body = contentType, body })
	}
	query := func(q string) idempotency.RequestContent {
		return with(func(r *idempotency.RequestContent) { r.Query = q })
	}
	same := [][]idempotency.RequestContent{
		{base, query("b=2&a=1&a=3"), query("a=%31&&b=2&a=3"), body("Application/JSON; charset=utf-8", []byte("{ \"a\" : 1.0 }"))},
		{query("a=3&b=2&a=1")},
		{query("a=1&b=2;a=3")},
		{query("a=1&b=%zz")},
		{query("")},
		{with(func(r *idempotency.RequestContent) { r.Method = "PATCH" })},
		{with(func(r *idempotency.RequestContent) { r.Operation = "op" })},
		{with(func(r *idempotency.RequestContent) { r.Path = "/q" })},
		{with(func(r *idempotency.RequestContent) { r.ContentEncoding = "gzip" })},
		{with(func(r *idempotency.RequestContent) { r.ContentEncoding = "br" })},
		{with(func(r *idempotency.RequestContent) { r.ContentEncoding, r.Body = "gzip", []byte(`{"a":1.0}`) })},
		{with(func(r *idempotency.RequestContent) { r.ContentEncoding, r.Digest = "gzip", "sha-256=:x:" })},
		{with(func(r *idempotency.RequestContent) { r.Digest = "sha-256=:x:" })},
		{with(func(r *idempotency.RequestContent) { r.Digest = `{"a":1}` })},
		{body("application/json", []byte(`{"a":2}`))},
		{body("application/vnd.x+json", []byte(`{"a":1}`)), body("application/vnd.x+json", []byte(`{"a":1e0}`))},
		{body("application/json; charset=utf-16", []byte(`{"a":1}`))},
		{body("text/plain", []byte(`{"a":1}`))},
		{body("text/plain", []byte(`{"a":1.0}`))},
		{body("text/plain; charset=utf-8", []byte(`{"a":1}`)), body("Text/Plain;Charset=utf-8", []byte(`{"a":1}`))},
		{body("text/plain; charset=latin1", []byte(`{"a":1}`))},
		{body("text/plain; boundary=x", []byte(`{"a":1}`))},
		{body("text/x+json", []byte(`{"a":1}`))},
		{body("text/x+json", []byte(`{"a":1.0}`))},
		{query("b=2;c&a=1")},
		{query("a=1&b=2;c")},
		{body("", []byte(`{"a":1}`))},
		{body(form, []byte("a=1&b=2")), body(form, []byte("b=2&a=%31"))},
		{body(form, []byte("a=1&a=2"))},
		{body(form, []byte("a=2&a=1"))},
		{body(multi+"x", parts("x", "1")), body(multi+`"y y"`, parts("y y", "1"))},
		{body(multi+"x", parts("x", "2"))},
		{body(multi+"x; type=a", parts("x", "1"))},
		{body(multi+"x", bytes.Replace(parts("x", "1"), []byte(`"a"`), []byte(`"b"`), 1))},
		{body(multi+"x", bytes.Replace(parts("x", "1"), []byte("\r\n\r\n"), []byte("\r\nContent-Type: text/csv\r\n\r\n"), 1))},
		{body(multi+"x", append(bytes.TrimSuffix(parts("x", "1"), []byte("--\r\n")), append([]byte("\r\n"), bytes.TrimPrefix(parts("x", "2"), []byte("--x\r\n"))...)...))},
		// Truncated.
		{body(multi+"x", bytes.TrimSuffix(parts("x", "1"), []byte("--\r\n")))},
		{body(multi+"x", append([]byte("preamble\r\n"), parts("x", "1")...))},
		{body(multi+"x", append(parts("x", "1"), "epilogue"...))},
	}
	seen := map[idempotency.Hash]int{}
	for i, rs := range same {
		for _, r := range rs {
			h := idempotency.HashRequest(r)
			if j, ok := seen[h]; ok && j != i {
				t.Errorf("%+v has the hash of %+v", r, same[j])
			}
			seen[h] = i
		}
		if len(seen) != i+1 {
			t.Fatalf("%+v have different hashes", rs)
		}
	}
}

// FuzzHashRequest: if two bodies of the same type get the same hash, a parser
// of that type finds the same content in them; and nothing panics.
func FuzzHashRequest(f *testing.F) {
	f.Add("a=1", "a=1", "application/json", []byte(`{"a":1}`), []byte(`{"a":1.0}`))
	f.Add("a=1&b=2", "b=2&a=1", "multipart/form-data; boundary=x", []byte("--x\r\n\r\n1\r\n--x--"), []byte("--x\r\n\r\n2\r\n--x--"))
	f.Add("a", "a=", "text/plain", []byte("a"), []byte("b"))
	f.Fuzz(func(t *testing.T, q1, q2, contentType string, a, b []byte) {
		x := idempotency.HashRequest(idempotency.RequestContent{Query: q1, ContentType: contentType, Body: a})
		y := idempotency.HashRequest(idempotency.RequestContent{Query: q2, ContentType: contentType, Body: b})
		if !x.Valid() || !y.Valid() {
			t.Fatal(x, y)
		}
		structured := strings.Contains(contentType, "json") || strings.Contains(contentType, "form") || strings.Contains(contentType, "multipart")
		if x == y && !structured && !bytes.Equal(a, b) && !strings.Contains(strings.ToLower(contentType), "json") {
			t.Errorf("%q and %q look alike as %q", a, b, contentType)
		}
		if bytes.Equal(a, b) && q1 == q2 && x != y {
			t.Errorf("%q does not equal itself", a)
		}
	})
}
