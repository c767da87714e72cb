// Command demo compiles the demo and starts it. It needs only the standard
// library, so that it runs while the rest is downloaded and compiled, and it
// shows the progress of that. Flags are those of the demo: --help lists them.
//
//	go run -C demo -v . --once
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	// A terminal sends Ctrl-C to all processes: the demo ends by itself, and
	// this program after it.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	os.Exit(run(os.Args[1:]))
}

const introduction = `Waybill: a shop writes orders and events in the same SQLite transactions. A relay
delivers the events as webhooks to an inventory, which applies each of them once.
The demo kills the inventory with kill -9, loses responses, repeats requests and
restarts the relay. SQL queries over the tables prove all the time that no event
is lost, doubled or overtaken.

The first start compiles SQLite and the demo, which takes about a minute.
`

// app is the package of the demo.
const app = "github.com/waybillhq/waybill/demo/app"

// quick are the packages that are compiled without optimization, which takes
// half the time: SQLite, which is C translated to Go, and what this program
// does not use. What this program uses is compiled already.
var quick = []string{
	"compress/...", "crypto/...", "database/...", "encoding/...", "html/...", "log/...", "math/big", "mime/...", "net/...", "regexp/...", "text/...", "vendor/...",
	"github.com/...", "golang.org/...", "modernc.org/...",
}

// unoptimized returns the flags for the packages in quick.
func unoptimized() []string {
	flags := make([]string, len(quick))
	for i, pattern := range quick {
		flags[i] = "-gcflags=" + pattern + "=-N -l"
	}
	return flags
}

// common are packages that the demo needs, and that compile while the others
// are downloaded.
var common = []string{"net/http", "database/sql", "html/template", "log/slog", "os/signal", "encoding/json", "hash/maphash", "embed"}

// run compiles and runs the demo, and returns its exit code.
func run(args []string) int {
	if _, err := os.Stat(filepath.Join("app", "main.go")); err != nil {
		fmt.Fprintln(os.Stderr, "demo: not in its folder; in the root folder of the repository, the command is: go run -C demo -v .")
		return 1
	}
	fmt.Print("\n" + introduction + "\n")
	folder, err := os.MkdirTemp("", "waybill-demo-program-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	program := filepath.Join(folder, "demo.exe") // Windows wants the suffix; others do not care
	if err := compile(program); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		return 1
	}
	cmd := exec.Command(program, args...) //nolint:noctx // the demo ends by itself
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		return 1
	}
	return 0
}

// compile writes the program.
func compile(program string) error {
	shown := &progress{began: time.Now(), out: os.Stdout}
	shown.phase("downloading SQLite, compiling the standard library", 0)
	packages, err := prepare(shown)
	if err != nil {
		return err
	}
	shown.phase("compiling", len(packages))
	// The lines are those of packages that are not compiled yet.
	err = build(shown, "-ldflags=-s -w", "-o", program, app)
	shown.end()
	return err
}

// prepare compiles what takes long, side by side: the standard library while
// modules are downloaded, then SQLite, which keeps one core busy to the end. It
// returns the packages of the demo.
func prepare(shown *progress) ([]string, error) {
	var packages []string
	var sqlite, others error
	var both sync.WaitGroup
	both.Go(func() {
		if packages, sqlite = goCommand(shown, "list", "-deps", app); sqlite == nil {
			sqlite = build(shown, "modernc.org/sqlite")
		}
	})
	both.Go(func() { others = build(shown, common...) })
	both.Wait()
	return packages, errors.Join(sqlite, others)
}

// build compiles packages.
func build(shown *progress, args ...string) error {
	_, err := goCommand(shown, slices.Concat([]string{"build", "-v"}, unoptimized(), args)...)
	return err
}

// goCommand runs the go command, counts the lines of its progress, and returns
// the lines of its output.
func goCommand(shown *progress, args ...string) ([]string, error) {
	cmd := exec.Command("go", args...) //nolint:noctx // Ctrl-C ends it, too
	// Without cgo the build needs no C compiler. The packages that this program
	// uses are not compiled again for that.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stdout, text bytes.Buffer
	cmd.Stdout = &stdout
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the go command: %w", err)
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		fmt.Fprintln(&text, lines.Text())
		shown.step(lines.Text())
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text.Bytes())
	}
	return strings.Fields(stdout.String()), nil
}

// progress shows what happens.
type progress struct {
	began time.Time
	out   io.Writer

	mu    sync.Mutex
	steps int
	name  string
}

// phase begins a phase.
func (p *progress) phase(name string, packages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = name
	if packages > 0 {
		p.name = fmt.Sprintf("%s; the demo has %d packages", name, packages)
	}
	p.print("")
}

// step shows a line of the go command.
func (p *progress) step(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	if module, ok := strings.CutPrefix(line, "go: downloading "); ok {
		line = "downloaded " + module
	}
	p.print(line)
}

// print writes a line, which is short enough for a terminal.
func (p *progress) print(detail string) {
	line := fmt.Sprintf("%3.0f s  %s", time.Since(p.began).Seconds(), p.name)
	if detail != "" {
		line = fmt.Sprintf("%3.0f s  %3d  %s", time.Since(p.began).Seconds(), p.steps, detail)
	}
	fmt.Fprintf(p.out, "%.78s\n", line)
}

// end ends the progress.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "%3.0f s  compiled\n\n", time.Since(p.began).Seconds())
}
