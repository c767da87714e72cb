package sqlname_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/sqlname"
)

var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

var samples = []string{
	"", "a", "_", "waybill_", "Waybill_2", "1a", "a-b", "a b", "a.b", `a"b`, "a`b", "a;b", "é", "a\x00", "a\n", " a", "a ", "A1_",
	strings.Repeat("x", 63), strings.Repeat("x", 64), "select", "\xff", "ａ", "a\u0301", "$1",
}

func TestCheck(t *testing.T) {
	for _, name := range samples {
		err := sqlname.Check("Config.Prefix", name)
		// In some regular expression dialects, but not in Go's, $ also matches
		// before a final newline.
		if want := plain.MatchString(name); (err == nil) != want {
			t.Errorf("Check(%q) is %v, want it accepted: %v", name, err, want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "Config.Prefix: ") {
			t.Errorf("the error %q does not name the field", err)
		}
	}
}

func TestCheckPrefixLeavesRoom(t *testing.T) {
	for n, want := range map[int]bool{1: true, 37: true, 38: false, 63: false, 64: false} {
		if err := sqlname.CheckPrefix("Prefix", strings.Repeat("x", n)); (err == nil) != want {
			t.Errorf("a prefix of %d bytes: %v, want it accepted: %v", n, err, want)
		}
	}
	if err := sqlname.CheckPrefix("Prefix", "a-b"); err == nil {
		t.Errorf("a prefix that is no name was accepted")
	}
	if err := sqlname.CheckPrefix("Prefix", sqlname.DefaultPrefix); err != nil {
		t.Errorf("the default prefix: %v", err)
	}
}

func TestQuote(t *testing.T) {
	for _, c := range []struct {
		got, want string
	}{
		{sqlname.Quote(`"`, "app", "waybill_outbox"), `"app"."waybill_outbox"`},
		{sqlname.Quote("`", "", "waybill_outbox"), "`waybill_outbox`"},
		// checked names contain no quotes; defense in depth
		{sqlname.Quote(`"`, `a"b`), `"a""b"`},
		{sqlname.Quote(`"`), ""},
	} {
		if c.got != c.want {
			t.Errorf("quoted as %s, want %s", c.got, c.want)
		}
	}
}

// FuzzName: a name is accepted exactly if it is a plain identifier, and then
// quoting adds nothing but the quotes.
func FuzzName(f *testing.F) {
	for _, name := range samples {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		ok := sqlname.Check("Name", name) == nil
		if ok != plain.MatchString(name) {
			t.Errorf("Check(%q) accepts it: %v", name, ok)
		}
		if sqlname.CheckPrefix("Name", name) == nil && !ok {
			t.Errorf("%q is a prefix and not a name", name)
		}
		if quoted := sqlname.Quote(`"`, name); ok && quoted != `"`+name+`"` {
			t.Errorf("%q is quoted as %s", name, quoted)
		}
	})
}

func ExampleQuote() {
	fmt.Println(sqlname.Check("Config.Schema", "app; DROP TABLE users"))
	fmt.Println(sqlname.Quote(`"`, "app", sqlname.DefaultPrefix+"outbox"))
	// Output:
	// Config.Schema: "app; DROP TABLE users" is not a plain name (letters, digits and underscores, no digit first)
	// "app"."waybill_outbox"
}
