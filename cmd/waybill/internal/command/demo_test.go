package command_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

// TestDemo checks that the fixed scenario exits with 0 and prints the proof,
// and that a sabotage exits with 1 and names the broken promise and the event
// on one line.
func TestDemo(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		out  string
		err  *regexp.Regexp
	}{
		{[]string{"demo", "--once"}, command.Ok, "✔ 5 one key, one order, one answer", regexp.MustCompile(`^$`)},
		{
			[]string{"demo", "--sabotage=lose"},
			command.Failed, "✘ 2 one event, one effect",
			regexp.MustCompile(`^waybill: promise 2 is broken \(one event, one effect\): event [0-9A-Z]{26} was never applied \(hint: .*\)\n$`),
		},
		{
			[]string{"demo", "--sabotage=double"},
			command.Failed, "✘ 2 one event, one effect",
			regexp.MustCompile(`^waybill: promise 2 is broken \(one event, one effect\): event [0-9A-Z]{26} [^\n]* \(hint: .*\)\n$`),
		},
		{
			[]string{"demo", "--sabotage=reorder"},
			command.Failed, "✘ 4 ",
			regexp.MustCompile(`^waybill: promise 4 is broken \([^)]*\): event [0-9A-Z]{26} [^\n]* \(hint: .*\)\n$`),
		},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := command.Run(t.Context(), c.args, command.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if code != c.code || !strings.Contains(out.String(), c.out) || !c.err.MatchString(errs.String()) {
				t.Errorf("exit code %d, want %d\n%s%s", code, c.code, out.String(), errs.String())
			}
		})
	}
}
