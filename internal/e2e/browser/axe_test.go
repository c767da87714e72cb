package browser

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"testing"
)

// TestAxeIsThePackaged: the program is the file of axe-core 4.14.1.
func TestAxeIsThePackaged(t *testing.T) {
	program, err := axe()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	if got := hex.EncodeToString(sum[:]); got != "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c" {
		t.Errorf("the sum of axe.min.js is %s", got)
	}
}

// TestFindings: a page with mistakes has serious findings, one of them only in
// dark colors; a page without them has none.
func TestFindings(t *testing.T) {
	b := New(t)
	page := func(style, body string) string {
		return "data:text/html," + url.PathEscape("<!doctype html><html lang=en><title>page</title><style>"+style+"</style><main><h1>page</h1>"+body+"</main>")
	}
	serious := func(colors, style, body string) (rules []string) {
		t.Helper()
		b.Open(page(style, body))
		b.colors(colors)
		for _, f := range b.findings() {
			if f.serious() {
				rules = append(rules, f.Rule)
			}
		}
		slices.Sort(rules)
		return rules
	}
	const dark = "p { color: #222; background: #fff } @media (prefers-color-scheme: dark) { p { background: #333 } }"
	for _, c := range []struct {
		colors, style, body string
		want                []string
	}{
		{"light", "", "<p>text</p>", nil},
		{"light", "", "<img src='data:,'><button></button>", []string{"button-name", "image-alt"}},
		{"light", dark, "<p>text</p>", nil},
		{"dark", dark, "<p>text</p>", []string{"color-contrast"}},
	} {
		if got := serious(c.colors, c.style, c.body); !slices.Equal(got, c.want) {
			t.Errorf("%s in %s colors: %v, want %v", c.body, c.colors, got, c.want)
		}
	}
}
