package command_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

// TestAnErrorNamesTheUserAndTheDatabase: redaction hides passwords, and not the
// names that an operator needs, also where both have the same name.
func TestAnErrorNamesTheUserAndTheDatabase(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &script{t: t, ids: map[string]string{}}
	_, errs, code := s.run(t.Context(), []string{"stats", "--store", "postgres://postgres@127.0.0.1:1/postgres"}, "")
	if code == command.Ok {
		t.Error("a server that is not there was counted")
	}
	for _, want := range []string{"postgres://postgres@127.0.0.1:1/postgres", "user=postgres", "database=postgres"} {
		if !strings.Contains(errs, want) {
			t.Errorf("the error does not say %q:\n%s", want, errs)
		}
	}
}
