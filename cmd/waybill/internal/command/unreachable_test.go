package command_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

// TestAnErrorNamesTheUserAndTheDatabase checks that redaction hides passwords,
// not the names that an operator needs, also if both are the same.
func TestAnErrorNamesTheUserAndTheDatabase(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &script{t: t, ids: map[string]string{}}
	_, errs, code := s.run(t.Context(), []string{"stats", "--store", "postgres://postgres@127.0.0.1:1/postgres"}, "")
	if code == command.Ok {
		t.Error("stats of an unreachable server succeeded")
	}
	for _, want := range []string{"postgres://postgres@127.0.0.1:1/postgres", "user=postgres", "database=postgres"} {
		if !strings.Contains(errs, want) {
			t.Errorf("the error does not contain %q:\n%s", want, errs)
		}
	}
}
