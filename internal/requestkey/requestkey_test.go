package requestkey_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/requestkey"
)

// TestKey: records of an earlier version are found, and parts cannot be moved
// from one to the next.
func TestKey(t *testing.T) {
	const stored = "f3d84c31f2bb9464be8485b84077aca67cc4f440629597b1d9a777773abeed8e"
	if got := requestkey.Key("acme", "ann", "POST /orders", "k-1"); got != stored {
		t.Errorf("got %s, want %s", got, stored)
	}
	seen := make(map[string]bool)
	for _, parts := range [][4]string{{"a", "b", "c", "d"}, {"ab", "", "c", "d"}, {"", "ab", "c", "d"}, {"a", "b", "cd", ""}, {"a", "b", "", "cd"}} {
		seen[requestkey.Key(parts[0], parts[1], parts[2], parts[3])] = true
	}
	if len(seen) != 5 {
		t.Errorf("%d keys of 5 requests", len(seen))
	}
}

// TestOperation: an operation that fits into its column is stored as it is.
func TestOperation(t *testing.T) {
	for text, hashed := range map[string]bool{
		"POST /orders": false, strings.Repeat("x", 128): false, strings.Repeat("x", 129): true, "": true, "a\x00": true, "\xff": true,
	} {
		if got := requestkey.Operation(text); (got != text) != hashed || len(got) > 128 {
			t.Errorf("%q is stored as %q", text, got)
		}
	}
}
