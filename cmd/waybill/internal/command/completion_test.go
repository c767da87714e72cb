package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletionScripts checks that each script registers itself with its shell
// and calls the program, and that installed shells can parse it.
func TestCompletionScripts(t *testing.T) {
	for _, c := range []struct {
		shell    string
		mentions []string
		check    []string // the command that parses a script without running it
	}{
		{"bash", []string{"__complete", "complete -o default -F __start_waybill waybill"}, []string{"bash", "-n"}},
		{"zsh", []string{"__complete", "#compdef waybill"}, []string{"zsh", "-n"}},
		{"fish", []string{"__complete", "complete -c waybill"}, []string{"fish", "--no-execute"}},
		{"powershell", []string{"__complete", "Register-ArgumentCompleter -CommandName 'waybill'"}, nil},
	} {
		t.Run(c.shell, func(t *testing.T) {
			s := newScript(t, "none")
			text, errs, code := s.run(t.Context(), []string{"completion", c.shell}, "")
			if code != 0 || errs != "" {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			for _, words := range c.mentions {
				if !strings.Contains(text, words) {
					t.Errorf("the script does not contain %s", words)
				}
			}
			if c.check == nil {
				return
			}
			program, err := exec.LookPath(c.check[0])
			if err != nil {
				t.Logf("%s is not installed", c.shell)
				return
			}
			s.must(os.WriteFile("script", []byte(text), 0o600))
			if out, err := exec.CommandContext(t.Context(), program, append(c.check[1:], "script")...).CombinedOutput(); err != nil {
				t.Errorf("%s cannot parse the script: %v\n%s", c.shell, err, out)
			}
		})
	}
}

// pressTab loads the script as a login shell does and completes the words of
// its arguments. _init_completion belongs to the package bash-completion; this
// is the part that the script needs. compopt works only during a real
// completion.
const pressTab = `
source script
compopt() { :; }
_init_completion() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
__start_waybill
printf '%s\n' "${COMPREPLY[@]}"
`

// TestCompletionInBash completes in a real shell that runs the program.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed; TestGolden/completion covers the answers to the script")
	}
	s := newScript(t, "none")
	text, errs, code := s.run(t.Context(), []string{"completion", "bash"}, "")
	if code != 0 {
		t.Fatal(errs)
	}
	s.must(os.WriteFile("script", []byte(text), 0o600))
	self, err := os.Executable()
	s.must(err)
	s.must(os.Symlink(self, "waybill"))
	for _, c := range []struct{ typed, want string }{
		{"waybill mig", "migrate"},
		{"waybill dead rep", "replay"},
		{"waybill send --payl", "--payload"},
		{"waybill completion power", "powershell"},
	} {
		cmd := exec.CommandContext(t.Context(), bash, append([]string{"--norc", "--noprofile", "-c", pressTab, "bash"}, strings.Fields(c.typed)...)...)
		cmd.Env = append(os.Environ(), asProgram+"=1", "PATH="+s.dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
			t.Errorf("%s completes to %q, want %q (%v)", c.typed, got, c.want, err)
		}
	}
}
