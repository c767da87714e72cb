package drivertest

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// want asserts that a struct has the wanted fields. The error lists only the
// fields that differ.
func want[S any](t tb, what string, got, want S) {
	t.Helper()
	if diffs := fieldDiffs("", reflect.ValueOf(&got).Elem(), reflect.ValueOf(&want).Elem()); len(diffs) > 0 {
		t.Errorf("%s: %s", what, strings.Join(diffs, "; "))
	}
}

// wantFields asserts some fields of a struct: those that set assigns.
func wantFields[S any](t tb, what string, got S, set func(want *S)) {
	t.Helper()
	expected := got
	set(&expected)
	want(t, what, got, expected)
}

// fieldDiffs returns the differences of two values of one type, by field.
func fieldDiffs(name string, got, want reflect.Value) []string {
	if at, ok := got.Interface().(time.Time); ok {
		if at.Equal(want.Interface().(time.Time)) {
			return nil
		}
	} else if got.Kind() == reflect.Struct && fieldsExported(got.Type()) {
		var diffs []string
		for i := range got.NumField() {
			field := got.Type().Field(i)
			inner := name + "." + field.Name
			if field.Anonymous {
				inner = name
			}
			diffs = append(diffs, fieldDiffs(inner, got.Field(i), want.Field(i))...)
		}
		return diffs
	}
	if reflect.DeepEqual(got.Interface(), want.Interface()) {
		return nil
	}
	return []string{fmt.Sprintf("%s is %s, want %s", strings.TrimPrefix(name, "."), shown(got), shown(want))}
}

func fieldsExported(t reflect.Type) bool {
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			return false
		}
	}
	return true
}

// shown returns a value as text, truncated if too long to read.
func shown(v reflect.Value) string {
	text := fmt.Sprintf("%v", v.Interface())
	switch value := v.Interface().(type) {
	case string:
		text = fmt.Sprintf("%q", value)
	case []byte:
		if text = fmt.Sprintf("%q", value); value == nil {
			text = "nil"
		}
	case time.Time:
		if text = value.Format(time.RFC3339Nano); value.IsZero() {
			text = "no time"
		}
	}
	if len(text) > 200 {
		return fmt.Sprintf("%s… (%d bytes)", text[:200], len(text))
	}
	return text
}
