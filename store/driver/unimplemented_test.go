package driver_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/store/driver"
)

// TestUnimplementedHasEveryRole: a type that embeds Unimplemented compiles as
// every role, whatever methods the role has.
func TestUnimplementedHasEveryRole(t *testing.T) {
	has := reflect.TypeFor[driver.Unimplemented[int]]()
	roles := reflect.TypeFor[driver.Roles[int]]()
	for i := range roles.NumField() {
		field := roles.Field(i)
		if slices.Contains([]string{"Watcher", "Backlogs", "Restorer", "Audit", "Rollups"}, field.Name) {
			// RolesOf finds these by a type assertion.
			continue
		}
		for i := range field.Type.NumMethod() {
			if name := field.Type.Method(i).Name; !hasMethod(has, name) {
				t.Errorf("Unimplemented lacks %s of the role %s", name, field.Name)
			}
		}
		if !has.Implements(field.Type) {
			t.Errorf("Unimplemented does not implement the role %s", field.Name)
		}
	}
}

func hasMethod(t reflect.Type, name string) bool {
	_, ok := t.MethodByName(name)
	return ok
}

// TestUnimplementedReturnsErrors: each method fails with ErrUnimplemented and
// its own name.
func TestUnimplementedReturnsErrors(t *testing.T) {
	value := reflect.ValueOf(driver.Unimplemented[int]{})
	for i := range value.NumMethod() {
		method := value.Type().Method(i)
		args := []reflect.Value{value}
		for i := 1; i < method.Type.NumIn(); i++ {
			args = append(args, reflect.Zero(method.Type.In(i)))
		}
		results := method.Func.Call(args)
		last := results[len(results)-1]
		if method.Name == "Local" || method.Name == "MigrationSQL" {
			if !last.IsZero() {
				t.Errorf("%s returned %v, want the zero value", method.Name, last)
			}
			continue
		}
		err, _ := last.Interface().(error)
		if !errors.Is(err, driver.ErrUnimplemented) || !strings.HasSuffix(err.Error(), " "+method.Name) {
			t.Errorf("%s returned %v, want ErrUnimplemented and its name", method.Name, err)
		}
		for _, result := range results[:len(results)-1] {
			if !result.IsZero() {
				t.Errorf("%s returned %v beside its error", method.Name, result)
			}
		}
	}
}

// TestUnimplementedHasNoOptionalInterface: callers use an optional interface if
// the type has it.
func TestUnimplementedHasNoOptionalInterface(t *testing.T) {
	has := reflect.TypeFor[*driver.Unimplemented[int]]()
	for _, optional := range []reflect.Type{
		reflect.TypeFor[driver.AnswerAtCommit[int]](), reflect.TypeFor[driver.Deferrer[int]](), reflect.TypeFor[driver.KeyPeeker](),
		reflect.TypeFor[driver.RetryClassifier](), reflect.TypeFor[driver.SQLAppender](), reflect.TypeFor[driver.TxChecker[int]](),
		reflect.TypeFor[driver.Upgrader](), reflect.TypeFor[driver.Watcher](), reflect.TypeFor[driver.Backlogs](), reflect.TypeFor[driver.Restorer](), reflect.TypeFor[driver.Audit](),
		reflect.TypeFor[driver.Rollups](), reflect.TypeFor[driver.Applied](),
	} {
		if has.Implements(optional) {
			t.Errorf("Unimplemented implements %v", optional)
		}
	}
}
