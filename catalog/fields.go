package catalog

import (
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// field is a member of the JSON object of a struct.
type field struct {
	name   string
	typ    reflect.Type
	tagged bool
	quoted bool // the option string
	// dropsEmpty and dropsZero are the options omitempty and omitzero.
	dropsEmpty, dropsZero bool
	// pointed reports that the field is promoted through an embedded pointer,
	// which may be nil.
	pointed bool
}

// optional reports whether encoding/json may leave the field out.
func (f field) optional() bool {
	return f.pointed || f.dropsZero || f.dropsEmpty && canBeEmpty(f.typ)
}

// neverNull reports whether encoding/json leaves a nil out, instead of null.
func (f field) neverNull() bool {
	switch f.typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return f.dropsEmpty || f.dropsZero
	default:
		return false
	}
}

// canBeEmpty reports whether omitempty applies to a type: structs are never
// empty.
func canBeEmpty(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return false
	case reflect.Array:
		return t.Len() == 0
	default:
		return true
	}
}

// embedded is a struct whose fields are promoted.
type embedded struct {
	typ     reflect.Type
	pointed bool
}

// fieldsOf returns the members of a struct's object by the rules of
// encoding/json: of several fields with one name, the least nested one counts;
// of several of those, the only one with a name in its tag; otherwise none.
func fieldsOf(t reflect.Type) []field {
	var all []field
	done := map[string]bool{}
	visited := map[reflect.Type]bool{}
	for level := []embedded{{typ: t}}; len(level) > 0; {
		var next []embedded
		var found []field
		for _, e := range level {
			// A type that occurs twice on a level hides its own fields, so each
			// of its occurrences counts.
			for i := range e.typ.NumField() {
				f, below := member(e, e.typ.Field(i))
				if below != nil && !visited[below.typ] {
					next = append(next, *below)
				}
				if f != nil {
					found = append(found, *f)
				}
			}
		}
		for _, e := range level {
			visited[e.typ] = true
		}
		next = slices.DeleteFunc(next, func(e embedded) bool { return visited[e.typ] })
		all = append(all, dominant(found, done)...)
		level = next
	}
	return all
}

// dominant returns the fields of one level that count, and marks their names.
func dominant(found []field, done map[string]bool) []field {
	byName := map[string][]field{}
	var names []string
	for _, f := range found {
		if done[f.name] {
			continue
		}
		if len(byName[f.name]) == 0 {
			names = append(names, f.name)
		}
		byName[f.name] = append(byName[f.name], f)
	}
	var out []field
	for _, name := range names {
		done[name] = true
		same := byName[name]
		if tagged := slices.DeleteFunc(slices.Clone(same), func(f field) bool { return !f.tagged }); len(tagged) == 1 {
			out = append(out, tagged[0])
		} else if len(same) == 1 {
			out = append(out, same[0])
		}
	}
	return out
}

// member returns a field of a struct as a member of the object, or as a struct
// whose fields are promoted, or neither.
func member(in embedded, sf reflect.StructField) (*field, *embedded) {
	tag := sf.Tag.Get("json")
	if tag == "-" {
		return nil, nil
	}
	inner := sf.Type
	if inner.Kind() == reflect.Pointer && inner.Name() == "" {
		inner = inner.Elem()
	}
	if !sf.IsExported() && (!sf.Anonymous || inner.Kind() != reflect.Struct) {
		return nil, nil
	}
	name, options, _ := strings.Cut(tag, ",")
	if !validName(name) {
		name = ""
	}
	if sf.Anonymous && name == "" && inner.Kind() == reflect.Struct {
		return nil, &embedded{inner, in.pointed || sf.Type.Kind() == reflect.Pointer}
	}
	f := &field{name: name, typ: sf.Type, tagged: name != "", pointed: in.pointed}
	if name == "" {
		f.name = sf.Name
	}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			f.dropsEmpty = true
		case "omitzero":
			f.dropsZero = true
		case "string":
			f.quoted = quotable(inner.Kind())
		}
	}
	return f, nil
}

// quotable reports whether the option string applies.
func quotable(k reflect.Kind) bool {
	return k == reflect.String || k == reflect.Bool || k >= reflect.Int && k <= reflect.Float64
}

// validName reports whether encoding/json takes a name from a tag.
func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}
