package catalog

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// schema is a JSON Schema. The empty schema accepts any value. The schemas use
// keywords that mean the same in draft 7, which AsyncAPI builds on, and in
// draft 2020-12.
type schema = map[string]any

// maxNesting is the maximum number of types in types.
const maxNesting = 200

// walker derives schemas from Go types. Named types become components, so that
// types may be recursive.
type walker struct {
	supplied   map[reflect.Type]schema
	components map[reflect.Type]schema
	order      []reflect.Type
}

func newWalker(cfg Config) (*walker, error) {
	w := &walker{supplied: map[reflect.Type]schema{}, components: map[reflect.Type]schema{}}
	var errs []error
	if cfg.Title == "" {
		errs = append(errs, errors.New("Config.Title: is empty"))
	}
	for t, text := range cfg.Schemas {
		s, err := parseSchema(text)
		switch {
		case t == nil:
			errs = append(errs, errors.New("Config.Schemas: a type is nil"))
		case err != nil:
			errs = append(errs, fmt.Errorf("Config.Schemas: %v: %w", t, err))
		default:
			w.supplied[t] = s
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return w, errors.Join(errs...)
}

// parseSchema reads a schema without references.
func parseSchema(text []byte) (schema, error) {
	var s schema
	if err := decode(text, &s); err != nil {
		return nil, err
	}
	if s == nil {
		return nil, errors.New("a schema is an object")
	}
	if bytes.Contains(text, []byte(`"$ref"`)) {
		return nil, errors.New("a schema has no $ref")
	}
	return s, nil
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// known are types of the standard library with a form of their own.
var known = map[reflect.Type]func() schema{
	reflect.TypeFor[time.Time]():   func() schema { return schema{"type": "string", "format": "date-time"} },
	reflect.TypeFor[json.Number](): func() schema { return schema{"type": "number"} },
	reflect.TypeFor[*big.Int]():    func() schema { return schema{"type": []any{"integer", "null"}} },
}

// schema returns the schema of what encoding/json writes for a type. Errors
// begin with the path of the field.
func (w *walker) schema(t reflect.Type, depth int) (schema, error) {
	if s := w.given(t); s != nil {
		return s, nil
	}
	if depth > maxNesting {
		return nil, fmt.Errorf(": %v is nested without end", t)
	}
	switch t.Kind() {
	case reflect.Interface:
		return schema{}, nil
	case reflect.Pointer:
		if w.given(t.Elem()) != nil {
			break
		}
		switch {
		case t.Implements(marshaler):
			return schema{}, nil
		case t.Implements(textMarshaler):
			return nullable(schema{"type": "string"}), nil
		}
	default:
		if s := custom(t); s != nil {
			return s, nil
		}
		return w.structural(t, depth)
	}
	s, err := w.schema(t.Elem(), depth+1)
	return nullable(s), err
}

// given returns the schema of a type from the configuration or of this package,
// nil for other types.
func (w *walker) given(t reflect.Type) schema {
	if s, ok := w.supplied[t]; ok {
		return maps.Clone(s)
	}
	if s, ok := known[t]; ok {
		return s()
	}
	return nil
}

// custom returns the schema of a type with methods that encode it, nil for
// other types. A method of the pointer runs only on addressable values, so a
// value of such a type may be anything.
func custom(t reflect.Type) schema {
	pointer := reflect.PointerTo(t)
	switch {
	case pointer.Implements(marshaler):
		return schema{}
	case t.Implements(textMarshaler):
		return schema{"type": "string"}
	case pointer.Implements(textMarshaler):
		return schema{}
	}
	return nil
}

// structural returns the schema of a type by its kind.
func (w *walker) structural(t reflect.Type, depth int) (schema, error) {
	switch k := t.Kind(); k {
	case reflect.Struct, reflect.Array:
		return w.named(t, depth)
	case reflect.Slice, reflect.Map:
		if k == reflect.Slice && isBytes(t) {
			return nullable(schema{"type": "string", "contentEncoding": "base64"}), nil
		}
		s, err := w.named(t, depth)
		return nullable(s), err
	default:
		if s := scalar(k); s != nil {
			return s, nil
		}
		return nil, fmt.Errorf(": %v has no JSON form", t)
	}
}

// isBytes reports whether encoding/json writes a slice as base64.
func isBytes(t reflect.Type) bool {
	element := reflect.PointerTo(t.Elem())
	return t.Elem().Kind() == reflect.Uint8 && !element.Implements(marshaler) && !element.Implements(textMarshaler)
}

// scalar returns the schema of a kind without elements, nil for kinds without a
// JSON form.
func scalar(k reflect.Kind) schema {
	switch k {
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.Int, reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Int8, reflect.Int16, reflect.Int32:
		limit := int64(1) << (8<<(k-reflect.Int8) - 1)
		return schema{"type": "integer", "minimum": number(-limit), "maximum": number(limit - 1)}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return schema{"type": "integer", "minimum": number(0), "maximum": number(int64(1)<<(8<<(k-reflect.Uint8)) - 1)}
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		return schema{"type": "integer", "minimum": number(0)}
	default:
		return nil
	}
}

func number(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

// named returns a reference to the component of a named type, and the schema
// itself of any other type.
func (w *walker) named(t reflect.Type, depth int) (schema, error) {
	if t.Name() == "" {
		return w.composite(t, depth)
	}
	if w.components[t] == nil {
		w.components[t] = schema{} // for recursive types: filled in below
		w.order = append(w.order, t)
		s, err := w.composite(t, depth)
		if err != nil {
			return nil, err
		}
		maps.Copy(w.components[t], s)
	}
	return schema{"$ref": t}, nil // finish replaces the type by a name
}

// composite returns the schema of a type with elements.
func (w *walker) composite(t reflect.Type, depth int) (schema, error) {
	if t.Kind() == reflect.Struct {
		return w.object(t, depth)
	}
	if t.Kind() == reflect.Map && !isKey(t.Key()) {
		return nil, fmt.Errorf(": %v has no JSON form: its keys are neither strings nor integers", t)
	}
	element, err := w.schema(t.Elem(), depth+1)
	if err != nil {
		return nil, fmt.Errorf("[]%w", err)
	}
	switch t.Kind() {
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": element}, nil
	case reflect.Array:
		n := number(int64(t.Len()))
		return schema{"type": "array", "items": element, "minItems": n, "maxItems": n}, nil
	default:
		return schema{"type": "array", "items": element}, nil
	}
}

// isKey reports whether encoding/json accepts a type as the key of a map.
func isKey(t reflect.Type) bool {
	k := t.Kind()
	return k == reflect.String || k >= reflect.Int && k <= reflect.Uintptr || t.Implements(textMarshaler)
}

// object returns the schema of a struct.
func (w *walker) object(t reflect.Type, depth int) (schema, error) {
	properties, required := schema{}, []any{}
	for _, f := range fieldsOf(t) {
		s, err := w.schema(f.typ, depth+1)
		if err != nil {
			return nil, fmt.Errorf(".%s%w", f.name, err)
		}
		if f.quoted {
			s = schema{"type": "string"}
			if f.typ.Kind() == reflect.Pointer {
				s = nullable(s)
			}
		}
		if f.neverNull() {
			s = withoutNull(s)
		}
		properties[f.name] = s
		if !f.optional() {
			required = append(required, f.name)
		}
	}
	s := schema{"type": "object"}
	if len(properties) > 0 {
		s["properties"] = properties
	}
	if len(required) > 0 {
		s["required"] = required
	}
	return s, nil
}

// nullable returns a schema that also accepts null.
func nullable(s schema) schema {
	if len(s) == 0 {
		return s
	}
	_, enum := s["enum"]
	if single, ok := s["type"].(string); ok && !enum {
		s["type"] = []any{single, "null"}
		return s
	}
	if isNullable(s) {
		return s
	}
	return schema{"anyOf": []any{s, schema{"type": "null"}}}
}

// isNullable reports whether nullable returned s.
func isNullable(s schema) bool {
	if list, ok := s["type"].([]any); ok {
		return slices.Contains(list, any("null"))
	}
	list, _ := s["anyOf"].([]any)
	return len(list) == 2 && reflect.DeepEqual(list[1], any(schema{"type": "null"}))
}

// withoutNull undoes nullable.
func withoutNull(s schema) schema {
	if !isNullable(s) {
		return s
	}
	if list, ok := s["anyOf"].([]any); ok {
		return list[0].(schema)
	}
	if rest := slices.DeleteFunc(slices.Clone(s["type"].([]any)), func(t any) bool { return t == "null" }); len(rest) == 1 {
		s["type"] = rest[0]
	} else {
		s["type"] = rest
	}
	return s
}

// finish gives the components their names, puts the names into the references,
// and returns the components by name.
func (w *walker) finish(types []EventType) map[string]schema {
	names := w.names()
	out := map[string]schema{}
	for t, s := range w.components {
		link(s, names)
		out[names[t]] = s
	}
	for _, t := range types {
		link(t.payload, names)
	}
	return out
}

// link replaces the types in references by names.
func link(v any, names map[reflect.Type]string) {
	switch v := v.(type) {
	case schema:
		if t, ok := v["$ref"].(reflect.Type); ok {
			v["$ref"] = componentRef + names[t]
		}
		for _, inner := range v {
			link(inner, names)
		}
	case []any:
		for _, inner := range v {
			link(inner, names)
		}
	}
}

// names returns a name for each component: that of the type, with its package
// or the path of its package where two types would have the same name.
func (w *walker) names() map[reflect.Type]string {
	names := map[reflect.Type]string{}
	taken := map[string]bool{}
	open := w.order
	for _, form := range []func(reflect.Type) string{
		func(t reflect.Type) string { return plainName(t) },
		func(t reflect.Type) string {
			return t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:] + "." + plainName(t)
		},
		func(t reflect.Type) string { return t.PkgPath() + "." + plainName(t) },
	} {
		count := map[string]int{}
		for _, t := range open {
			count[key(form(t))]++
		}
		open = slices.DeleteFunc(slices.Clone(open), func(t reflect.Type) bool {
			name := key(form(t))
			if count[name] > 1 || taken[name] {
				return false
			}
			names[t] = name
			return true
		})
		for _, name := range names {
			taken[name] = true
		}
	}
	for i, t := range open { // types of one name in functions of one package
		names[t] = unique(key(t.PkgPath()+"."+plainName(t)+"_"+strconv.Itoa(i+1)), taken)
	}
	return names
}

// unique returns a name that is not taken, and takes it.
func unique(name string, taken map[string]bool) string {
	out := name
	for i := 2; taken[out]; i++ {
		out = name + "_" + strconv.Itoa(i)
	}
	taken[out] = true
	return out
}

var paths = regexp.MustCompile(`[^\[\],*]*/`)

// plainName returns the name of a type, without the paths of its arguments'
// packages.
func plainName(t reflect.Type) string {
	return strings.TrimRight(paths.ReplaceAllString(t.Name(), ""), "]")
}

var notKey = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// key returns a name as a key of a component of AsyncAPI.
func key(name string) string { return notKey.ReplaceAllString(name, "_") }
