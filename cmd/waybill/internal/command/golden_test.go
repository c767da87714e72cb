package command_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

var update = flag.Bool("update", false, "write the golden files and the tables of docs/cli.md")

// TestGolden replays the transcripts of testdata/golden. Each "$ waybill …"
// line is run; the following lines are its output: standard output, then
// standard error with the prefix "! ", then the exit code if it is not 0. Lines
// with the prefix "> " call a fixture, with the lines after "| " as its text;
// lines with the prefix "< " are input of the terminal. The first line lists
// the stores; the output is the same on all of them.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		stores, ok := strings.CutPrefix(first, "stores: ")
		if !ok {
			t.Fatalf("%s does not begin with stores:", file)
		}
		for _, kind := range strings.Fields(stores) {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+kind, func(t *testing.T) {
				path, err := filepath.Abs(file)
				if err != nil {
					t.Fatal(err)
				}
				s := newScript(t, kind)
				got := s.replay(t, string(text))
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
					return
				}
				if want := strings.ReplaceAll(string(text), "\r\n", "\n"); got != want {
					t.Errorf("%s: the transcript differs (go test ./internal/command -run TestGolden -update writes it again):\n%s", file, diff(want, got))
				}
			})
		}
	}
}

// TestEveryCommandHasATranscript checks that a transcript covers every command.
func TestEveryCommandHasATranscript(t *testing.T) {
	files, _ := filepath.Glob("testdata/golden/*.txt")
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, name := range command.Names() {
		if name == "waybill serve" || strings.HasPrefix(name, "waybill completion ") {
			continue // serve_test.go, completion_test.go
		}
		if !strings.Contains(all.String(), "$ "+name+" ") && !strings.Contains(all.String(), "$ "+name+"\n") {
			t.Errorf("%s has no transcript in testdata/golden", name)
		}
	}
}

// script is one replay.
type script struct {
	t        *testing.T
	dir      string
	kind     string // of the store
	database string // the schema or database of the store, if it has one
	environ  []string
	ids      map[string]string // event ids, by the order in which they were first seen
	names    map[string]string // replacements for names in braces: ids of fixtures, and words that differ by store
	hidden   []string          // texts that differ from run to run, and their replacements
}

func newScript(t *testing.T, kind string) *script {
	t.Helper()
	s := &script{t: t, dir: t.TempDir(), kind: kind, ids: map[string]string{}, names: map[string]string{}}
	t.Chdir(s.dir)
	s.hidden = append(s.hidden, s.dir, "DIR")
	s.useStore(kind)
	return s
}

// run runs a command line.
func (s *script) run(ctx context.Context, args []string, typed string) (stdout, stderr string, code int) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // for a command that does not fail as expected
	defer cancel()
	var out, errs bytes.Buffer
	code = command.Run(ctx, args, command.Streams{
		In: strings.NewReader(typed), Out: &out, Err: &errs, Environ: s.environ, Interactive: typed != "",
	})
	return out.String(), errs.String(), code
}

func (s *script) replay(t *testing.T, text string) string {
	var got strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch {
		case i == 0, strings.HasPrefix(line, "#"), line == "" && (i+1 == len(lines) || isInput(lines[i+1])):
			fmt.Fprintln(&got, line)
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&got, line)
			text := ""
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "| ") {
				i++
				fmt.Fprintln(&got, lines[i])
				text += lines[i][2:] + "\n"
			}
			s.fixture(strings.Fields(line[2:]), text)
		case strings.HasPrefix(line, "$ waybill"):
			fmt.Fprintln(&got, line)
			typed := ""
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "< ") {
				i++
				fmt.Fprintln(&got, lines[i])
				typed += lines[i][2:] + "\n"
			}
			stdout, stderr, code := s.run(t.Context(), s.args(strings.TrimPrefix(line, "$ waybill")), typed)
			got.WriteString(s.normal(stdout))
			for errLine := range strings.Lines(s.normal(stderr)) {
				fmt.Fprintln(&got, strings.TrimRight("! "+strings.TrimRight(errLine, "\n"), " "))
			}
			if code != 0 {
				fmt.Fprintf(&got, "[exit %d]\n", code)
			}
		}
	}
	return got.String()
}

func isInput(line string) bool {
	return strings.HasPrefix(line, "#") || strings.HasPrefix(line, "> ") || strings.HasPrefix(line, "$ ")
}

// args splits a line like a shell, as far as transcripts need it: words, single
// quotes, and names of events in braces.
func (s *script) args(line string) []string {
	var args []string
	for i, part := range strings.Split(s.spell(line), "'") {
		if i%2 == 0 {
			args = append(args, strings.Fields(part)...)
		} else {
			args = append(args, part)
		}
	}
	return args
}

var (
	ulid      = regexp.MustCompile(`\b0[0-9A-HJKMNP-TV-Z]{25}\b`)
	plainTime = regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\b`)
	jsonTime  = regexp.MustCompile(`"20\d\d-\d\d-\d\dT[0-9:.]+Z"`)
	lag       = regexp.MustCompile(`(?m)^(lag +)(\d+s)( *)`)
	aged      = regexp.MustCompile(`(?m)^((?:billing|partner|archive) .*?  )(\d+s)( +)`)
	reasons   = regexp.MustCompile(`(?m)^(why  | *"text": ).*$`)
	passed    = regexp.MustCompile(`\b\d+ (ms|s|min|h|d)( \d+ (ms|s|min|h))?\b`)
	oldestDue = regexp.MustCompile(`("(?:lag|oldest_due|oldest_lapsed)_seconds": )[0-9.e+-]+`)
	logTime   = regexp.MustCompile(`\btime=20\S+`)
	version   = regexp.MustCompile(`waybill \S+ GO PLATFORM`)
	goVersion = regexp.MustCompile(regexp.QuoteMeta(runtime.Version()))
)

// normal replaces texts that differ from run to run by others of the same
// width, so that tables stay aligned.
func (s *script) normal(text string) string {
	text = strings.NewReplacer(s.hidden...).Replace(text)
	text = ulid.ReplaceAllStringFunc(text, func(id string) string {
		if s.ids[id] == "" {
			s.ids[id] = fmt.Sprintf("%026d", len(s.ids)+1)
		}
		return s.ids[id]
	})
	text = jsonTime.ReplaceAllString(text, `"TIME"`)
	for _, ages := range []*regexp.Regexp{lag, aged} {
		text = ages.ReplaceAllStringFunc(text, func(m string) string {
			p := ages.FindStringSubmatch(m)
			return p[1] + "Ns" + strings.Repeat(" ", len(p[2])-2) + p[3]
		})
	}
	text = oldestDue.ReplaceAllString(text, "${1}SECONDS")
	text = goVersion.ReplaceAllString(text, "GO")
	text = reasons.ReplaceAllStringFunc(text, func(m string) string { return passed.ReplaceAllString(m, "SPAN") })
	text = logTime.ReplaceAllString(text, "time=TIME")
	text = plainTime.ReplaceAllString(text, "YYYY-MM-DDThh:mm:ssZ")
	text = strings.ReplaceAll(text, runtime.GOOS+"/"+runtime.GOARCH, "PLATFORM")
	return version.ReplaceAllString(text, "waybill VERSION GO PLATFORM")
}

// diff returns the lines that differ between two texts.
func diff(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out strings.Builder
	shown := 0
	for i := range max(len(a), len(b)) {
		x, y := "", ""
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			if shown++; shown > 10 {
				fmt.Fprintln(&out, "…")
				break
			}
			fmt.Fprintf(&out, "line %d\n  want %s\n  got  %s\n", i+1, x, y)
		}
	}
	return out.String()
}
