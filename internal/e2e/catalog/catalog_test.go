package catalog

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/big"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/catalog"
)

// Types with everything that encoding/json treats in a way of its own.
type (
	node struct {
		Value    int     `json:"value"`
		Next     *node   `json:"next"`
		Children []node  `json:"children,omitempty"`
		ByName   byName  `json:"byName"`
		Sparse   *byName `json:"sparse,omitzero"`
	}
	byName map[string]*node
	forest []forest

	money struct {
		Amount   int64
		Currency currency
	}
	currency string
	hidden   struct {
		Promoted int `json:"promoted"`
		Shadowed int `json:"shadowed"`
	}
	Audited struct {
		By       string `json:"by"`
		Shadowed string `json:"shadowed"`
	}
	Stamp struct {
		At time.Time `json:"at"`
	}
	Left        struct{ Same, OnlyLeft int }
	Right       struct{ Same, OnlyRight int }
	Text        string
	page[T any] struct {
		Items []T `json:"items"`
		Next  *T  `json:"next,omitempty"`
	}
	// upper is encoded by a method of its own.
	upper string
	// boxed is encoded by a method of its pointer, which runs only on
	// addressable values.
	boxed struct{ N int }
	point struct{ X, Y int }

	all struct {
		hidden
		*Audited
		Stamp `json:"stamp"`
		Left
		Right
		Text

		Shadowed bool `json:"shadowed"`

		Bool    bool    `json:"bool,omitempty"`
		Int8    int8    `json:"int8"`
		Uint16  uint16  `json:"uint16"`
		Uint64  uint64  `json:"uint64"`
		Float   float64 `json:"float,omitempty"`
		Quoted  int     `json:"quoted,string"`
		QuotedP *int    `json:"quotedPointer,string"`
		QuotedS []int   `json:"quotedSlice,string"` //nolint:staticcheck // encoding/json accepts the tag

		Pointer      *int                `json:"pointer"`
		PointerEmpty *int                `json:"pointerEmpty,omitempty"`
		Money        money               `json:"money,omitempty"`
		MoneyZero    money               `json:"moneyZero,omitzero"`
		MoneyPointer *money              `json:"moneyPointer"`
		Time         time.Time           `json:"time,omitempty"`
		TimeZero     time.Time           `json:"timeZero,omitzero"`
		TimePointer  *time.Time          `json:"timePointer"`
		Duration     time.Duration       `json:"duration"`
		Raw          json.RawMessage     `json:"raw"`
		RawEmpty     json.RawMessage     `json:"rawEmpty,omitempty"`
		Number       json.Number         `json:"number"`
		Big          *big.Int            `json:"big"`
		Any          any                 `json:"any"`
		AnyEmpty     any                 `json:"anyEmpty,omitempty"`
		Bytes        []byte              `json:"bytes"`
		BytesZero    []byte              `json:"bytesZero,omitzero"`
		Sum          [2]byte             `json:"sum,omitempty"`
		None         [0]int              `json:"none,omitempty"`
		Slice        []money             `json:"slice"`
		SliceZero    []money             `json:"sliceZero,omitzero"`
		Pointers     []*money            `json:"pointers"`
		Map          map[string]int      `json:"map"`
		MapZero      map[string]int      `json:"mapZero,omitzero"`
		Keys         map[netip.Addr]bool `json:"keys"`
		Ints         map[int]string      `json:"ints"`
		Address      netip.Addr          `json:"address"`
		AddressP     *netip.Addr         `json:"addressPointer"`
		ID           waybill.ID          `json:"id"`
		Upper        upper               `json:"upper"`
		UpperP       *upper              `json:"upperPointer"`
		Boxed        boxed               `json:"boxed"`
		BoxedP       *boxed              `json:"boxedPointer"`
		BoxedS       []boxed             `json:"boxedSlice"`
		Point        point               `json:"point"`
		Points       map[string]point    `json:"points"`
		Anonymous    struct{ A int }     `json:"anonymous"`
		Page         page[money]         `json:"page"`
		Page2        page[*node]         `json:"page2"`

		Dash     int `json:"-,"` //nolint:staticcheck // encoding/json accepts the tag
		Ignored  int `json:"-"`
		Odd      int `json:"odd name!"`
		BadName  int `json:"bad\"name"` //nolint:staticcheck // encoding/json accepts the tag
		Quote    int `json:"<&>"`
		private  int
		Currency currency `json:"currency"`
	}
)

func (u upper) MarshalJSON() ([]byte, error) { return json.Marshal([]string{string(u)}) }

func (b *boxed) MarshalText() ([]byte, error) { return []byte("boxed"), nil }

func ptr[T any](v T) *T { return &v }

// sample is a definition with payloads.
type sample struct {
	catalog.Definition
	payloads []any
}

// samples are payloads of the definitions: as little and as much as each type
// can have.
var samples = []sample{
	{waybill.Define[all]("all", waybill.Spec{AggregateType: "thing", Topic: "things"}), []any{
		all{Number: "0", ID: waybill.NewID()}, full(),
	}},
	{waybill.Define[*all]("pointer to all", waybill.Spec{AggregateType: "thing", Topic: "things"}), []any{(*all)(nil), ptr(full())}},
	{waybill.Define[node]("node", waybill.Spec{}), []any{node{}, tree()}},
	{waybill.Define[forest]("forest", waybill.Spec{}), []any{forest(nil), forest{{{}, nil}, {}}}},
	{waybill.Define[[]byte]("bytes", waybill.Spec{}), []any{[]byte(nil), []byte{1}}},
	{waybill.Define[any]("any", waybill.Spec{SchemaID: "s", SchemaVersion: 3}), []any{nil, 1, "x"}},
	{waybill.Define[map[string]any]("map", waybill.Spec{}), []any{map[string]any{"a": 1}}},
	{waybill.Define[struct{}]("empty", waybill.Spec{}), []any{struct{}{}}},
	{waybill.Define[[]byte]("text", waybill.Spec{ContentType: "text/plain"}), nil},
}

func tree() node {
	n := node{Value: 1, Next: &node{}, Children: []node{{Next: &node{}}}, ByName: byName{"a": nil, "b": {}}}
	n.Sparse = &n.ByName
	return n
}

func full() all {
	m := money{1, "EUR"}
	return all{
		hidden: hidden{1, 2}, Audited: &Audited{"a", "b"}, Stamp: Stamp{time.Now()}, Left: Left{1, 2}, Right: Right{3, 4}, Text: "t",
		Shadowed: true, Bool: true, Int8: -128, Uint16: 65535, Uint64: 1 << 63, Float: 1.5, Quoted: 1, QuotedP: ptr(2), QuotedS: []int{1},
		Pointer: ptr(1), PointerEmpty: ptr(1), Money: m, MoneyZero: m, MoneyPointer: &m, Time: time.Now(), TimeZero: time.Now(), TimePointer: ptr(time.Now()),
		Duration: 1, Raw: json.RawMessage(`[1]`), RawEmpty: json.RawMessage(`"x"`), Number: "1.5", Big: big.NewInt(7), Any: m, AnyEmpty: "x",
		Bytes: []byte("x"), BytesZero: []byte{}, Sum: [2]byte{1, 255}, Slice: []money{m}, SliceZero: []money{}, Pointers: []*money{nil, &m},
		Map: map[string]int{"a": 1}, MapZero: map[string]int{}, Keys: map[netip.Addr]bool{netip.IPv6Loopback(): true}, Ints: map[int]string{1: "x"},
		Address: netip.IPv6Loopback(), AddressP: ptr(netip.IPv6Loopback()), ID: waybill.NewID(), Upper: "u", UpperP: ptr(upper("u")),
		Boxed: boxed{1}, BoxedP: &boxed{1}, BoxedS: []boxed{{1}}, Points: map[string]point{"a": {}}, Page: page[money]{[]money{m}, &m},
		Page2: page[*node]{[]*node{nil, ptr(tree())}, ptr(ptr(node{}))}, Dash: 1, Ignored: 1, private: 1, Currency: "EUR",
	}
}

func newCatalog(t *testing.T) *catalog.Catalog {
	t.Helper()
	var defs []catalog.Definition
	for _, s := range samples {
		defs = append(defs, s.Definition)
	}
	c, err := catalog.New(catalog.Config{Title: "things", Schemas: map[reflect.Type]json.RawMessage{
		reflect.TypeFor[currency](): json.RawMessage(`{"enum": ["EUR", "USD", ""]}`),
		reflect.TypeFor[point]():    json.RawMessage(`{"type": "object", "required": ["X", "Y"], "description": "a point"}`),
	}}, defs...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func parse(t *testing.T, text []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestAsyncAPI: the document is valid by the schema of AsyncAPI 3.0.
func TestAsyncAPI(t *testing.T) {
	text, err := os.ReadFile("testdata/asyncapi-3.0.0.json")
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	const name = "http://asyncapi.com/definitions/3.0.0/asyncapi.json"
	if err := compiler.AddResource(name, parse(t, text)); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := newCatalog(t).Write(&b); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(parse(t, b.Bytes())); err != nil {
		t.Errorf("%#v\n%s", err, b.String())
	}
	for what, change := range map[string][2]string{
		"the schema of a payload": {`"type": "integer"`, `"type": "whole"`},
		"an operation":            {`"action": "send"`, `"action": "emit"`},
		"the version":             {`"asyncapi": "3.0.0"`, `"asyncapi": "2.6.0"`},
	} {
		if broken := bytes.ReplaceAll(b.Bytes(), []byte(change[0]), []byte(change[1])); schema.Validate(parse(t, broken)) == nil {
			t.Errorf("the schema of AsyncAPI accepts another value of %s", what)
		}
	}
}

// TestSchemas: each schema is valid by draft 2020-12 and accepts what
// encoding/json writes, and the required fields are those that are always
// written.
func TestSchemas(t *testing.T) {
	c := newCatalog(t)
	types := map[string]catalog.EventType{}
	for _, et := range c.Types() {
		types[et.Name] = et
	}
	for _, d := range samples {
		text := c.Schema(types[d.Type()])
		if len(d.payloads) == 0 {
			if text != nil {
				t.Errorf("%s: a payload that is not JSON has the schema %s", d.Type(), text)
			}
			continue
		}
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		compiler.AssertContent()
		if err := compiler.AddResource("waybill:payload", parse(t, text)); err != nil {
			t.Fatal(err)
		}
		schema, err := compiler.Compile("waybill:payload")
		if err != nil {
			t.Fatalf("%s: %v\n%s", d.Type(), err, text)
		}
		if schema.DraftVersion != 2020 {
			t.Errorf("%s: the schema is of draft %d", d.Type(), schema.DraftVersion)
		}
		var objects []map[string]any
		for _, p := range d.payloads {
			data, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			v := parse(t, data)
			if err := schema.Validate(v); err != nil {
				t.Errorf("%s: %v\n%s\n%s", d.Type(), err, data, text)
			}
			if object, ok := v.(map[string]any); ok {
				objects = append(objects, object)
			}
		}
		if len(objects) == 2 {
			sameFields(t, d.Type(), text, objects[0], objects[1])
		}
	}
}

// sameFields compares the fields of a schema with those of the smallest and of
// the largest object.
func sameFields(t *testing.T, name string, text []byte, smallest, largest map[string]any) {
	t.Helper()
	type object struct {
		Properties map[string]any `json:"properties"`
		Required   []string       `json:"required"`
	}
	var root struct {
		Ref  string            `json:"$ref"`
		Defs map[string]object `json:"$defs"`
	}
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	got := root.Defs[root.Ref[len("#/$defs/"):]]
	slices.Sort(got.Required)
	if want := slices.Sorted(maps.Keys(smallest)); !slices.Equal(got.Required, want) {
		t.Errorf("%s: required:\n%q\nwant:\n%q", name, got.Required, want)
	}
	if got, want := slices.Sorted(maps.Keys(got.Properties)), slices.Sorted(maps.Keys(largest)); !slices.Equal(slices.DeleteFunc(got, func(s string) bool { return s == "none" }), want) {
		t.Errorf("%s: properties:\n%q\nwant:\n%q", name, got, want)
	}
}

// TestStrict: the schemas are no wider than what encoding/json writes.
func TestStrict(t *testing.T) {
	c := newCatalog(t)
	i := slices.IndexFunc(c.Types(), func(et catalog.EventType) bool { return et.Name == "all" })
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("waybill:payload", parse(t, c.Schema(c.Types()[i]))); err != nil {
		t.Fatal(err)
	}
	schema := compiler.MustCompile("waybill:payload")
	data, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]string{
		"int8": "128", "uint16": "-1", "uint64": "-1", "quoted": "1", "quotedPointer": "1", "pointerEmpty": "null", "moneyZero": "null",
		"moneyPointer": "1", "timeZero": "null", "time": `"yesterday"`, "bytesZero": "null", "sum": "[1]", "sliceZero": "null", "mapZero": "null", "map": `{"a": "b"}`,
		"money": `{"Amount": 1, "Currency": "CHF"}`, "point": "{}", "page": `{"items": [null]}`, "page2": `{"items": [{"value": "x"}]}`, "shadowed": `"x"`,
		"slice": `{}`, "big": "1.5", "address": "null", "duration": `"1s"`,
	} {
		v := parse(t, data).(map[string]any)
		if _, ok := v[name]; !ok {
			t.Fatalf("no field %s", name)
		}
		v[name] = parse(t, []byte(wrong))
		if schema.Validate(v) == nil {
			t.Errorf("%s: %s is accepted", name, wrong)
		}
	}
}
