package httpkey

import (
	"net/http"
	"strings"
	"testing"
)

func keyFrom(strict bool, lines ...string) (string, error) {
	c := Config{Header: "Idempotency-Key", MinLen: 1, Strict: strict}
	return c.key(&http.Request{Header: http.Header{"Idempotency-Key": lines}})
}

// A client chooses the header. Every value is a key or an error, and never a
// panic: the middleware runs before the handler, without the handler's own
// protection.
func TestNoHeaderPanics(t *testing.T) {
	for _, line := range []string{
		`"a";d=@`, `"a";d=@ `, `"a";d=@1`, `"a";d=@-`, `"a";d=%"%`, `"a";d=%`, `"a";d=%"`, `"a";d=%"%0`, `"a";d=%"%zz"`, `"a";d=%"%ff"`, `"a";d=:`, `"a";d=:=:`,
		`"a";d=?`, `"a";d=?2`, `"a";d="`, `"a";d="\`, `"a";d=`, `"a";`, `"a";=`, `"a";*`, `"a";d=-`, `"a";d=1.`, `"a";d=1234567890123456`, `"`, `"\`, `"a\`, `;`, `@`, `%"%`, `%`, `?`, `:`,
		`-`, `(`, `("a"`, `"a", "b"`, `"a""b"`, "\"a\x00\"", "\"\xff\"", `"é"`,
	} {
		for _, strict := range []bool{false, true} {
			key, err := keyFrom(strict, line)
			if err == nil && (key == "" || len(key) > maxKey) {
				t.Errorf("%q is the key %q", line, key)
			}
			if err != nil && key != "" {
				t.Errorf("%q is the key %q, and wrong: %v", line, key, err)
			}
		}
	}
}

// Vectors of RFC 9651: strings, and parameters of every type, which are ignored
// but must be valid.
func TestKeysOfRFC9651(t *testing.T) {
	for line, want := range map[string]string{
		`"a"`: "a", `  "a"  `: "a", `"a b"`: "a b", `"a\"b\\c"`: `a"b\c`, `"a,b;c"`: "a,b;c",
		`"a";p`: "a", `"a"; p`: "a", `"a";p=1;q=-2.5`: "a", `"a";p="x";q=tok/en:1*`: "a", `"a";p=?0;q=?1`: "a", `"a";p=:aGVsbG8=:`: "a",
		`"a";p=@1659578233`: "a", `"a";p=@-1`: "a", `"a";p=%"f%c3%bc"`: "a", `"a";*p=1;p-q.r_s*=2`: "a",
		`""`: "", `"a`: "", `a"`: "", `"a"b`: "", `"a" b`: "", `"a";`: "", `"a";P=1`: "", `"a";p=`: "", `"a" ;p`: "", `"a", "b"`: "", `"\a"`: "", `"é"`: "", "\"\t\"": "",
		`"a";p=@1.5`: "", `"a";p=@`: "", `"a";p=%"%C3%BC"`: "", `"a";p=%"%c3"`: "", `"a";p=?2`: "", `"a";p=1.`: "", `"a";p=1234567890123456`: "", `("a")`: "", `a`: "", `1`: "", `?1`: "", `:YQ==:`: "",
	} {
		if got, err := keyFrom(true, line); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is the key %q, %v; want %q", line, got, err, want)
		}
	}
}

func FuzzKey(f *testing.F) {
	for _, line := range []string{`"a"`, `"a\"b\\c"`, `"a";d=@`, `"a";d=%"%`, `"a";p=%"f%c3%bc";q=?1;r=:aGVsbG8=:;s=-2.5;t=tok/en`, `a`, `a,b`, "\"\xff\"", `"a";`, ``} {
		f.Add(line, false)
		f.Add(line, true)
	}
	f.Fuzz(func(t *testing.T, line string, strict bool) {
		key, err := keyFrom(strict, line)
		if err != nil {
			if key != "" {
				t.Errorf("%q is the key %q, and wrong: %v", line, key, err)
			}
			if secret := strings.Trim(line, ` "`); len(secret) > 20 && strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the key: %v", err)
			}
			return
		}
		for _, c := range []byte(key) {
			if c < 0x20 || c > 0x7e {
				t.Errorf("%q is the key %q", line, key)
			}
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := keyFrom(true, quoted); err != nil || again != key {
			t.Errorf("%q is the key %q, but %q is %q, %v", line, key, quoted, again, err)
		}
	})
}
