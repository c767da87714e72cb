package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/catalog"
	"github.com/waybillhq/waybill/internal/docblock"
)

// TestWrite: the program of docs/events.md is this one, and writes a catalog.
func TestWrite(t *testing.T) {
	text, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range docblock.Blocks(t, "docs/events.md", "go catalog") {
		if !strings.Contains(strings.ReplaceAll(string(text), "\r\n", "\n"), block) {
			t.Errorf("main.go lacks a block of docs/events.md:\n%s", block)
		}
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if types := c.Types(); len(types) != 2 || types[0].Name != "OrderPlaced" || types[1].Topic != "orders" {
		t.Errorf("%+v", types)
	}
}
