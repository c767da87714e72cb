package catalog_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/catalog"
)

type money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

type orderLine struct {
	Product string `json:"product"`
	Price   money  `json:"price"`
}

type order struct {
	Customer string            `json:"customer"`
	PlacedAt time.Time         `json:"placedAt"`
	Lines    []orderLine       `json:"lines"`
	Total    *money            `json:"total,omitempty"`
	Labels   map[string]string `json:"labels,omitzero"`
	Gift     *bool             `json:"gift"`
}

var shop = []catalog.Definition{
	waybill.Define[order]("OrderPlaced", waybill.Spec{AggregateType: "order", Topic: "orders", SchemaVersion: 2}),
	waybill.Define[struct {
		Reason string `json:"reason"`
	}]("OrderCanceled", waybill.Spec{AggregateType: "order", Topic: "orders"}),
	waybill.Define[[]byte]("stock/v1 counted", waybill.Spec{ContentType: "application/avro", SchemaID: "stock-7"}),
}

// TestWrite compares the document with testdata; UPDATE=1 writes it.
func TestWrite(t *testing.T) {
	c, err := catalog.New(catalog.Config{Title: "shop", Version: "1.2.0", Description: "Orders of <the> shop."}, shop...)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("testdata/shop.json", b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/shop.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("the document differs from testdata/shop.json:\n%s", got)
	}
	types := c.Types()
	if got := types[2]; got.Name != "OrderPlaced" || got.Topic != "orders" || got.SchemaVersion != 2 || got.ContentType != waybill.JSON || got.AggregateType != "order" {
		t.Errorf("%+v", got)
	}
	if got := c.Schema(types[0]); got != nil {
		t.Errorf("the schema of %s: %s", types[0].Name, got)
	}
	var schema struct {
		Schema string                     `json:"$schema"`
		Ref    string                     `json:"$ref"`
		Defs   map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal(c.Schema(types[2]), &schema); err != nil || schema.Ref != "#/$defs/order" || len(schema.Defs) != 3 {
		t.Errorf("%+v, %v", schema, err)
	}
	if err := c.Write(refusing{}); err == nil {
		t.Error("Write to a full disk: no error")
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("no space") }

// TestNewErrors: New reports each definition that has no JSON form, with the
// path of the field.
func TestNewErrors(t *testing.T) {
	type pointer *pointer
	_, err := catalog.New(
		catalog.Config{Schemas: map[reflect.Type]json.RawMessage{reflect.TypeFor[int](): json.RawMessage("["), reflect.TypeFor[bool](): json.RawMessage(`{"$ref": "#"}`), nil: nil}},
		waybill.Define[struct {
			Lines []struct {
				Done chan int `json:"done"`
			} `json:"lines"`
		}]("A", waybill.Spec{}),
		waybill.Define[map[float64]int]("B", waybill.Spec{}),
		waybill.Define[func()]("C", waybill.Spec{}),
		waybill.Define[pointer]("D", waybill.Spec{}),
		waybill.Definition[int]{}, nil,
		waybill.Define[bool]("E", waybill.Spec{}), waybill.Define[bool]("E", waybill.Spec{}),
	)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"Config.Title: is empty", "Config.Schemas: int: ", "Config.Schemas: bool: a schema has no $ref", "Config.Schemas: a type is nil",
		"event A: payload.lines[].done: chan int has no JSON form", "event B: payload: map[float64]int has no JSON form", "event C: payload: func() has no JSON form",
		"is nested without end", "a definition was not made by Define", "event E: defined twice for the aggregate type __GLOBAL__",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// TestReadErrors: a file that is no catalog is not taken for an empty one.
func TestReadErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "not a catalog",
		"[]":                       "not a catalog",
		"{}":                       `asyncapi is ""`,
		`{"asyncapi": "2.6.0"}`:    `asyncapi is "2.6.0"`,
		`{"asyncapi": "3.0.0"} {}`: "data after the end",
		`{"asyncapi": "3.0.0", "components": {"messages": {"A": {}, "B": {"name": "A"}}}}`:                                "event A of __GLOBAL__ is there twice",
		`{"asyncapi": "3.0.0", "components": {"messages": {"A": {"payload": {"$ref": "#/components/schemas/X"}}}}}`:       "the schema #/components/schemas/X is missing",
		`{"asyncapi": "3.0.0", "components": {"schemas": {"Y": {"anyOf": [{"$ref": "other.json#/X"}]}}, "messages": {}}}`: "schema Y: the schema other.json#/X is missing",
	} {
		if _, err := catalog.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	c, err := catalog.Read(strings.NewReader(`{"asyncapi": "3.0.0", "components": {"messages": {"A": {}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Types(); len(got) != 1 || got[0].Name != "A" || got[0].Topic != "A" || got[0].SchemaVersion != 1 || got[0].ContentType != waybill.JSON {
		t.Errorf("%+v", got)
	}
}

// A program of the service writes the file, and CI compares it with the
// committed one.
func Example() {
	type placed struct {
		Customer string `json:"customer"`
		Total    int    `json:"total"`
	}
	type placedNow struct {
		Customer string `json:"customer"`
		Amount   int    `json:"amount"`
	}
	before, _ := catalog.New(catalog.Config{Title: "shop"}, waybill.Define[placed]("OrderPlaced", waybill.Spec{}))
	after, _ := catalog.New(catalog.Config{Title: "shop"}, waybill.Define[placedNow]("OrderPlaced", waybill.Spec{}))
	for _, change := range catalog.Compare(before, after) {
		fmt.Println(change.Breaks(catalog.Full), change)
	}
	// Output:
	// true OrderPlaced: total: the required field was removed (amount is new and has the same type: a rename is a removal for consumers)
	// true OrderPlaced: amount: the new field is required, and old events lack it (omitzero makes it optional)
}
