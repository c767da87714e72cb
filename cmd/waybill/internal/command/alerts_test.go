package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

var (
	runbook = regexp.MustCompile(`(?m)^ +runbook: '?waybill ([^'\n]+)'?$`)
	label   = regexp.MustCompile(`\{\{ \$labels\.\w+ \}\}`)
)

// TestAlertsNameCommandsOfTheProgram: the program accepts the command of every
// alert, with its flags.
func TestAlertsNameCommandsOfTheProgram(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(docblock.Root(t), "deploy", "prometheus", "waybill.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, m := range runbook.FindAllStringSubmatch(string(text), -1) {
		commands = append(commands, label.ReplaceAllString(m[1], "billing"))
	}
	if alerts := strings.Count(string(text), "- alert:"); alerts == 0 || len(commands) != alerts {
		t.Errorf("%d alerts, and %d commands", alerts, len(commands))
	}
	slices.Sort(commands)
	for _, line := range slices.Compact(commands) {
		t.Run(line, func(t *testing.T) {
			args := strings.Fields(line)
			for _, word := range args {
				if strings.Contains(word, "{") {
					t.Fatalf("%s is not expanded", word)
				}
			}
			s := newScript(t, "none")
			help, errs, code := s.run(t.Context(), append(args, "--help"), "")
			name := "waybill " + strings.TrimSpace(strings.SplitN(line+" ", "--", 2)[0])
			if code != 0 || errs != "" || !strings.Contains(help, name+" [flags]") {
				t.Errorf("exit code %d: %s\n%s", code, errs, help)
			}
		})
	}
}
