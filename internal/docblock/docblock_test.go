package docblock

import (
	"fmt"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	text := "a\n```go\none\n\ntwo\n```\n```sql x\nthree\n```\n```go\n```\nrest\n```go\nopen"
	if got, want := parse(text, "go"), []string{"one\n\ntwo\n", "\n"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := parse(text, "sql x"), []string{"three\n"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func ExampleBlocks() {
	// In a test: for _, block := range docblock.Blocks(t, "README.md", "go") {
	// … }
	fmt.Println(len(parse("```go\nfmt.Println()\n```\n", "go")))
	// Output: 1
}
