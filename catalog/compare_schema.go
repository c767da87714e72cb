package catalog

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"
)

// set is a set of words: types, names of properties, values of an enum.
type set map[string]bool

func (s set) without(other set) []string {
	var out []string
	for name := range s {
		if !other[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// allTypes are the types of JSON values. A number that is no integer is a
// "number" here, so that each value has one type.
var allTypes = set{"null": true, "boolean": true, "string": true, "integer": true, "number": true, "array": true, "object": true}

// shape is a schema with its reference resolved.
type shape struct {
	types set
	// rest are the other keywords.
	rest schema
	// ref is the reference, "" for other schemas.
	ref string
}

// shapeOf resolves a schema of a catalog. A schema may also be true or false.
func (c *Catalog) shapeOf(v any) shape {
	s, ok := v.(schema)
	if v == false {
		return shape{types: set{}}
	}
	if !ok {
		return shape{types: allTypes}
	}
	if list, ok := s["anyOf"].([]any); ok && isNullable(s) && len(s) == 1 {
		inner := c.shapeOf(list[0])
		inner.types = maps.Clone(inner.types)
		inner.types["null"] = true
		return inner
	}
	out := shape{}
	for range maxNesting { // references to references
		ref, ok := s["$ref"].(string)
		if !ok {
			break
		}
		s, out.ref = c.component(ref), ref
	}
	out.rest = maps.Clone(s)
	delete(out.rest, "type")
	out.types = typesOf(s)
	return out
}

// typesOf returns the types of the values that a schema accepts.
func typesOf(s schema) set {
	types := set{}
	add := func(name string) {
		types[name] = true
		if name == "number" {
			types["integer"] = true
		}
	}
	switch t := s["type"].(type) {
	case string:
		add(t)
	case []any:
		for _, name := range t {
			add(fmt.Sprint(name))
		}
	default:
		values, ok := s["enum"].([]any)
		if !ok {
			return allTypes
		}
		for _, v := range values {
			types[typeOf(v)] = true
		}
	}
	return types
}

// typeOf returns the type of a JSON value.
func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case json.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok && r.IsInt() {
			return "integer"
		}
		return "number"
	default:
		return "object"
	}
}

// describeTypes returns the types for a reader, without null.
func describeTypes(types set) string {
	if len(types) == len(allTypes) {
		return "any value"
	}
	var names []string
	for name := range types {
		if name != "null" && (name != "integer" || !types["number"]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "no value"
	}
	slices.Sort(names)
	return strings.Join(names, " or ")
}

// node compares the schemas of one place.
func (c *comparison) node(path string, before, after any) {
	o, n := c.before.shapeOf(before), c.after.shapeOf(after)
	if o.ref != "" && n.ref != "" {
		pair := [2]string{o.ref, n.ref}
		if c.open[pair] {
			return // a recursive type
		}
		c.open[pair] = true
		defer delete(c.open, pair)
	}
	c.types(path, o.types, n.types)
	if len(o.types) == len(allTypes) && len(o.rest) == 0 || len(n.types) == len(allTypes) && len(n.rest) == 0 {
		return // the types say it all
	}
	both := false
	for name := range o.types {
		both = both || name != "null" && n.types[name]
	}
	if !both {
		return
	}
	c.properties(path, o.rest, n.rest)
	c.inner(path+"[]", "items", o.rest, n.rest)
	c.inner(join(path, "*"), "additionalProperties", o.rest, n.rest)
	c.keywords(path, o.rest, n.rest)
}

// types compares the types of one place.
func (c *comparison) types(path string, o, n set) {
	added, removed := n.without(o), o.without(n)
	null := func(names []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "null" })
	}
	if more, less := null(added), null(removed); len(more)+len(less) > 0 {
		c.add(path, forward.when(len(more) > 0)|backward.when(len(less) > 0), "the type went from %s to %s", describeTypes(o), describeTypes(n))
	} else if len(added) > 0 {
		c.add(path, forward, "the value may be null now")
	} else if len(removed) > 0 {
		c.add(path, backward, "the value is never null now, and old events may have null")
	}
}

// inner compares the schemas of elements.
func (c *comparison) inner(path, keyword string, o, n schema) {
	before, was := o[keyword]
	after, is := n[keyword]
	if !was && !is {
		return
	}
	if !was {
		before = true
	}
	if !is {
		after = true
	}
	c.node(path, before, after)
}

// properties compares the fields of an object.
func (c *comparison) properties(path string, o, n schema) {
	before, after := propertiesOf(o), propertiesOf(n)
	mustBefore, mustAfter := requiredOf(o), requiredOf(n)
	for name := range mustBefore {
		before[name] = either(before[name])
	}
	for name := range mustAfter {
		after[name] = either(after[name])
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		at := join(path, name)
		s, stays := after[name]
		switch {
		case !stays && mustBefore[name]:
			c.add(at, forward, "the required field was removed%s", renamed(name, before, after, mustBefore, mustAfter))
		case !stays:
			c.add(at, 0, "the optional field was removed%s", renamed(name, before, after, mustBefore, mustAfter))
		case mustBefore[name] && !mustAfter[name]:
			c.add(at, forward, "the field was required and is optional now")
		case !mustBefore[name] && mustAfter[name]:
			c.add(at, backward, "the field is required now, and old events may lack it")
		}
		if stays {
			c.node(at, before[name], s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, was := before[name]; was {
			continue
		}
		if mustAfter[name] {
			c.add(join(path, name), backward, "the new field is required, and old events lack it (omitzero makes it optional)")
		} else {
			c.add(join(path, name), 0, "the optional field is new")
		}
	}
}

func either(s any) any {
	if s == nil {
		return true
	}
	return s
}

func propertiesOf(s schema) schema {
	p, _ := s["properties"].(schema)
	if p == nil {
		return schema{}
	}
	return maps.Clone(p)
}

func requiredOf(s schema) set {
	list, _ := s["required"].([]any)
	out := set{}
	for _, name := range list {
		out[fmt.Sprint(name)] = true
	}
	return out
}

// renamed names the new field that has the schema of a removed one and is
// required if that one was, if there is one such field.
func renamed(removed string, before, after schema, mustBefore, mustAfter set) string {
	var same []string
	for name, s := range after {
		if _, was := before[name]; !was && mustAfter[name] == mustBefore[removed] && reflect.DeepEqual(s, before[removed]) {
			same = append(same, name)
		}
	}
	if len(same) != 1 {
		return ""
	}
	return fmt.Sprintf(" (%s is new and has the same type: a rename is a removal for consumers)", same[0])
}

// join returns the path of a field.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// annotations say nothing about which values are valid.
var annotations = set{
	"title": true, "description": true, "default": true, "examples": true, "$comment": true, "deprecated": true, "readOnly": true,
	"writeOnly": true, "$id": true, "$schema": true,
	// Compared by other functions.
	"$ref": true, "properties": true, "required": true, "items": true, "additionalProperties": true,
}

// bounds are the keywords whose values are limits: 1 for a lower limit, -1 for
// an upper one.
var bounds = map[string]int{
	"minimum": 1, "exclusiveMinimum": 1, "minLength": 1, "minItems": 1, "minProperties": 1,
	"maximum": -1, "exclusiveMaximum": -1, "maxLength": -1, "maxItems": -1, "maxProperties": -1,
}

// keywords compares the other keywords. A keyword narrows the values: one that
// is gone admits new values, and one that is new excludes old ones.
func (c *comparison) keywords(path string, o, n schema) {
	names := set{}
	for _, s := range []schema{o, n} {
		for name := range s {
			if !annotations[name] && !strings.HasPrefix(name, "x-") {
				names[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, was := o[name]
		after, is := n[name]
		switch {
		case was && is && reflect.DeepEqual(before, after):
		case !is:
			c.add(path, forward, "%s %s was removed, and values of other kinds may come", name, text(before))
		case !was:
			c.add(path, backward, "%s %s is new, and old events may have other values", name, text(after))
		case name == "enum":
			c.enum(path, before, after)
		default:
			c.add(path, changed(bounds[name], before, after), "%s went from %s to %s", name, text(before), text(after))
		}
	}
}

// changed returns what the change of a keyword breaks. sign is 1 for a lower
// limit, -1 for an upper limit, and 0 for other keywords.
func changed(sign int, before, after any) breaks {
	o, isNumber := new(big.Rat).SetString(text(before))
	n, isNumber2 := new(big.Rat).SetString(text(after))
	if sign == 0 || !isNumber || !isNumber2 {
		return forward | backward
	}
	wider := n.Cmp(o)*sign < 0
	return forward.when(wider) | backward.when(!wider)
}

// enum compares the values of an enumeration.
func (c *comparison) enum(path string, before, after any) {
	o, n := valuesOf(before), valuesOf(after)
	if added := n.without(o); len(added) > 0 {
		c.add(path, forward, "the value %s is new, and existing consumers do not know it", strings.Join(added, ", "))
	}
	if removed := o.without(n); len(removed) > 0 {
		c.add(path, backward, "the value %s was removed, and old events may have it", strings.Join(removed, ", "))
	}
}

func valuesOf(v any) set {
	list, _ := v.([]any)
	out := set{}
	for _, one := range list {
		out[text(one)] = true
	}
	return out
}

// text returns a value of a keyword as JSON.
func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}
