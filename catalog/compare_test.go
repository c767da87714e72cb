package catalog_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/catalog"
)

// catalogOf returns the catalog of a service as it is read from its file.
func catalogOf(t *testing.T, cfg catalog.Config, defs ...catalog.Definition) *catalog.Catalog {
	t.Helper()
	cfg.Title = "shop"
	c, err := catalog.New(cfg, defs...)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	first := b.String()
	read, err := catalog.Read(strings.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if err := read.Write(&b); err != nil || b.String() != first {
		t.Fatalf("a catalog that was read is written differently (%v):\n%s\nwant:\n%s", err, b.String(), first)
	}
	return read
}

type currency string

// placed returns a definition of OrderPlaced with the payload type P.
func placed[P any]() waybill.Definition[P] {
	return waybill.Define[P]("OrderPlaced", waybill.Spec{AggregateType: "order"})
}

type (
	base struct {
		ID    string `json:"id"`
		Total int32  `json:"total"`
		Note  string `json:"note,omitempty"`
	}
	line  struct{ Price int }
	line2 struct{ Price string }
	tree  struct{ Children []tree }
	tree2 struct{ Children []tree2 }
	tree3 struct {
		Children []tree3 `json:",omitzero"`
	}
	renamed struct {
		ID    string `json:"id"`
		Total int32  `json:"amount"`
		Note  string `json:"note,omitempty"`
		Tip   int32  `json:"tip,omitempty"`
	}
)

// TestCompare: each change is reported once, with the promises that it breaks.
func TestCompare(t *testing.T) {
	values := func(list string) catalog.Config {
		return catalog.Config{Schemas: map[reflect.Type]json.RawMessage{reflect.TypeFor[currency](): json.RawMessage(list)}}
	}
	none, back, forth, full := "compatible", "backward", "forward", "full"
	for _, c := range []struct {
		name          string
		before, after catalog.Definition
		cfg, cfgAfter catalog.Config
		want          []string // the kind and the beginning of each change
	}{
		{name: "no change", before: placed[base](), after: placed[base]()},
		{name: "another Go type with the same fields", before: placed[tree](), after: placed[tree2]()},
		{
			name: "required field removed", before: placed[base](), after: placed[struct {
				ID   string `json:"id"`
				Note string `json:"note,omitempty"`
			}](), want: []string{forth + " total: the required field was removed"},
		},
		{
			name: "required field renamed", before: placed[base](), after: placed[renamed](),
			want: []string{forth + " total: the required field was removed (amount is new and has the same type", back + " amount: the new field is required", none + " tip: the optional field is new"},
		},
		{
			name: "optional field removed, optional and required fields added", before: placed[base](), after: placed[struct {
				ID    string `json:"id"`
				Total int32  `json:"total"`
				Extra bool   `json:"extra,omitzero"`
				Must  bool   `json:"must"`
			}](), want: []string{none + " note: the optional field was removed", none + " extra: the optional field is new", back + " must: the new field is required"},
		},
		{
			name: "required becomes optional and the reverse", before: placed[base](), after: placed[struct {
				ID    string `json:"id,omitempty"`
				Total int32  `json:"total"`
				Note  string `json:"note"`
			}](), want: []string{forth + " id: the field was required", back + " note: the field is required now"},
		},
		{
			name: "number narrowed", before: placed[struct{ A float64 }](), after: placed[struct{ A int }](),
			want: []string{back + " A: the type went from number to integer"},
		},
		{
			name: "number widened", before: placed[struct{ A int }](), after: placed[struct{ A float64 }](),
			want: []string{forth + " A: the type went from integer to number"},
		},
		{
			name: "integer narrowed", before: placed[struct{ A int32 }](), after: placed[struct{ A int16 }](),
			want: []string{back + " A: maximum went", back + " A: minimum went"},
		},
		{
			name: "integer widened", before: placed[struct{ A int16 }](), after: placed[struct{ A int32 }](),
			want: []string{forth + " A: maximum went", forth + " A: minimum went"},
		},
		{
			name: "integer without limit", before: placed[struct{ A int32 }](), after: placed[struct{ A int64 }](),
			want: []string{forth + " A: maximum 2147483647 was removed", forth + " A: minimum -2147483648 was removed"},
		},
		{
			name: "another type", before: placed[base](), after: placed[struct {
				ID    string `json:"id"`
				Total string `json:"total"`
				Note  string `json:"note,omitempty"`
			}](), want: []string{full + " total: the type went from integer to string"},
		},
		{
			name: "null admitted", before: placed[struct{ A int }](), after: placed[struct{ A *int }](),
			want: []string{forth + " A: the value may be null now"},
		},
		{
			name: "null excluded, of a component", before: placed[struct{ A *line }](), after: placed[struct{ A line }](),
			want: []string{back + " A: the value is never null now"},
		},
		{
			name: "in the elements of a component", before: placed[struct{ Lines []line }](), after: placed[struct{ Lines []line2 }](),
			want: []string{full + " Lines[].Price: the type went from integer to string"},
		},
		{
			name: "in the values of a map", before: placed[map[string]int](), after: placed[map[string]bool](),
			want: []string{full + " *: the type went from integer to boolean"},
		},
		{
			name: "in a recursive type", before: placed[tree](), after: placed[tree3](),
			want: []string{forth + " Children: the field was required", back + " Children: the value is never null now"},
		},
		{
			name: "any value narrowed", before: placed[struct{ A any }](), after: placed[struct{ A line }](),
			want: []string{back + " A: the type went from any value to object"},
		},
		{
			name: "any value admitted", before: placed[struct{ A line }](), after: placed[struct{ A any }](),
			want: []string{forth + " A: the type went from object to any value"},
		},
		{
			name: "array with another length", before: placed[[2]int](), after: placed[[3]int](),
			want: []string{forth + " maxItems went", back + " minItems went"},
		},
		{
			name: "format", before: placed[struct{ A string }](), after: placed[struct{ A []byte }](),
			want: []string{forth + " A: the value may be null now", back + " A: contentEncoding"},
		},
		{
			name: "values of an enumeration", before: placed[struct{ A currency }](), after: placed[struct{ A currency }](),
			cfg: values(`{"enum": ["EUR", "USD"]}`), cfgAfter: values(`{"enum": ["EUR", "CHF"]}`),
			want: []string{forth + ` A: the value "CHF" is new`, back + ` A: the value "USD" was removed`},
		},
		{
			name: "a keyword that cannot be judged", before: placed[struct{ A currency }](), after: placed[struct{ A currency }](),
			cfg: values(`{"type": "string", "pattern": "^a"}`), cfgAfter: values(`{"type": "string", "pattern": "^b", "title": "B"}`),
			want: []string{full + ` A: pattern went from "^a" to "^b"`},
		},
		{name: "type removed", before: placed[base](), want: []string{full + " the event type of aggregate type order was removed"}},
		{name: "type added", after: placed[base](), want: []string{none + " the event type of aggregate type order is new"}},
		{
			name: "aggregate type and topic", before: placed[base](),
			after: waybill.Define[base]("OrderPlaced", waybill.Spec{AggregateType: "orders", Topic: "t"}),
			want:  []string{full + " the aggregate type went from order to orders", forth + " the topic went from OrderPlaced to t"},
		},
		{
			name: "versions", before: waybill.Define[base]("E", waybill.Spec{SchemaVersion: 2, SchemaID: "a"}),
			after: waybill.Define[base]("E", waybill.Spec{SchemaVersion: 3, SchemaID: "b"}),
			want:  []string{none + ` the schema id went from "a" to "b"`, none + " the schema version went from 2 to 3"},
		},
		{
			name: "an older version", before: waybill.Define[base]("E", waybill.Spec{SchemaVersion: 2}), after: waybill.Define[base]("E", waybill.Spec{}),
			want: []string{full + " the schema version went from 2 to 1"},
		},
		{
			name: "content type", before: placed[[]byte](), after: waybill.Define[[]byte]("OrderPlaced", waybill.Spec{AggregateType: "order", ContentType: "text/plain"}),
			want: []string{full + " the content type went from application/json to text/plain"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			defs := func(d catalog.Definition) []catalog.Definition {
				if d == nil {
					return nil
				}
				return []catalog.Definition{d}
			}
			changes := catalog.Compare(catalogOf(t, c.cfg, defs(c.before)...), catalogOf(t, c.cfgAfter, defs(c.after)...))
			var got []string
			for _, change := range changes {
				kind := none
				switch {
				case change.BreaksForward && change.BreaksBackward:
					kind = full
				case change.BreaksForward:
					kind = forth
				case change.BreaksBackward:
					kind = back
				}
				_, text, _ := strings.Cut(change.String(), ": ")
				got = append(got, kind+" "+text)
			}
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestBreaks: each promise has its own breaks.
func TestBreaks(t *testing.T) {
	forth, back := catalog.Change{BreaksForward: true}, catalog.Change{BreaksBackward: true}
	for promise, want := range map[catalog.Compatibility][3]bool{
		catalog.Forward: {true, false, false}, catalog.Backward: {false, true, false}, catalog.Full: {true, true, false},
	} {
		if got := [3]bool{forth.Breaks(promise), back.Breaks(promise), (catalog.Change{}).Breaks(promise)}; got != want {
			t.Errorf("%s: %v, want %v", promise, got, want)
		}
	}
}

// TestCompareOneNameOfTwoAggregates: events of one name are matched by their
// aggregate types.
func TestCompareOneNameOfTwoAggregates(t *testing.T) {
	of := func(aggregate string) catalog.Definition {
		return waybill.Define[base]("Deleted", waybill.Spec{AggregateType: aggregate})
	}
	changes := catalog.Compare(catalogOf(t, catalog.Config{}, of("order"), of("user")), catalogOf(t, catalog.Config{}, of("user"), of("cart")))
	if len(changes) != 2 || !strings.Contains(changes[0].Text, "order was removed") || !strings.Contains(changes[1].Text, "cart is new") {
		t.Errorf("%v", changes)
	}
}
