package kind_test

import (
	"testing"

	"github.com/waybillhq/waybill/internal/kind"
)

// TestNamesAreApart: ordinary names are unchanged, and no two kinds share a
// name.
func TestNamesAreApart(t *testing.T) {
	if got := kind.Name("order", "OrderPlaced"); got != "order:OrderPlaced" {
		t.Errorf("a usual name is %s", got)
	}
	types := []string{"", "a", "b", "c", `a:b\`, ":", `\`, "a:b", "b:c", "a:", ":a", `a\`, `\:`, `\:a`, `a\:b`}
	seen := map[string][2]string{}
	for _, aggregate := range types {
		for _, event := range types {
			name := kind.Name(aggregate, event)
			if other, taken := seen[name]; taken {
				t.Errorf("%q and %q are both %s", other, [2]string{aggregate, event}, name)
			}
			seen[name] = [2]string{aggregate, event}
		}
	}
}
