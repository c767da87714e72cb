//go:build unix

package command_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

// TestSoak: a soak that keeps every promise exits with 0; each sabotage, which
// a process of the soak does in the real flow, exits with 1, and the error
// names the promise that it breaks.
func TestSoak(t *testing.T) {
	for _, c := range []struct {
		sabotage string
		code     int
		err      string
	}{
		{"", command.Ok, ""},
		{"lose", command.Failed, "waybill: the promise delivered is broken: "},
		{"double-effect", command.Failed, "waybill: the promise once is broken: "},
		{"second-effect", command.Failed, "waybill: 2 promises are broken, the first is one-effect: "}, // the second execution has another answer
	} {
		t.Run("sabotage="+c.sabotage, func(t *testing.T) {
			args := []string{"soak", "--lease=1s", "--fault-every=2s", "--rate=60", "--seed=5", "--report=" + filepath.Join(t.TempDir(), "report"), "--sabotage=" + c.sabotage}
			if c.sabotage == "" {
				args = append(args, "--events=40")
			}
			var out, errs bytes.Buffer
			code := command.Run(t.Context(), args, command.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if code != c.code || !strings.HasPrefix(errs.String(), c.err) || c.err == "" && errs.Len() > 0 {
				t.Errorf("exit code %d, want %d, and %q\n%s%s", code, c.code, c.err, out.String(), errs.String())
			}
		})
	}
}
