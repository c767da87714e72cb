//go:build linux || darwin

package manage

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
)

// startPatience bounds how long a server may take to accept connections. A
// loaded machine with slow disks needs several seconds.
const startPatience = 90 * time.Second

// engine is one kind of server. The methods only describe; what runs and waits
// is in this file, the same for each.
type engine interface {
	// name is how the command line, folders and messages call the engine.
	name() string
	// env is the variable that carries the address.
	env() string
	// account is the system user that the engine's package makes.
	account() string
	// programs lists what has to be installed, the server itself first.
	programs() []program
	// version returns the version of the installed server, such as 15.3.
	version(ctx context.Context) (string, error)
	// recipe returns the commands that fill an empty data folder.
	recipe(data string) []step
	// argv returns the command that serves the data folder on a port.
	argv(place place, port int) []string
	// ready reports whether the server accepts connections.
	ready(place place, log string) bool
	// portTaken reports whether the log says that the port was in use.
	portTaken(log string) bool
	// dsn returns the address for tests.
	dsn(port int) string
}

// step is one command of a recipe, and what it reads.
type step struct {
	argv  []string
	stdin string
}

// engines returns all engines, in the order in which they are reported.
func engines() []engine { return []engine{postgres{}, mariadb{}} }

// place is where one server of an instance keeps its files.
type place struct {
	dir  string // the server's own folder
	data string
	log  string
	info string // the JSON description
}

func placeOf(instance, name string) place {
	dir := filepath.Join(instance, name)
	return place{
		dir:  dir,
		data: filepath.Join(dir, "data"),
		log:  filepath.Join(instance, name+".log"),
		info: filepath.Join(instance, name+".json"),
	}
}

// Server describes a running server. It is stored as NAME.json in the
// instance's folder, so that a test that kills a server can start it again.
type Server struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Port    int      `json:"port"`
	DSN     string   `json:"dsn"`
	Env     string   `json:"env"`            // the variable that carries the DSN
	User    string   `json:"user,omitempty"` // the account it runs as, if not the caller's
	Data    string   `json:"data"`
	Log     string   `json:"log"`
	Argv    []string `json:"argv"`
}

// startEngine initialises and starts one server inside the instance folder.
func (h *Home) startEngine(ctx context.Context, e engine, instance string) (Server, error) {
	begun := time.Now()
	version, err := e.version(ctx)
	if err != nil {
		return Server{}, err
	}
	acct, err := serverAccount(e.account())
	if err != nil {
		return Server{}, err
	}
	at := placeOf(instance, e.name())
	if err := os.Mkdir(at.dir, 0o700); err != nil {
		return Server{}, err
	}
	if err := acct.own(at.dir); err != nil {
		return Server{}, err
	}
	if err := h.fill(ctx, e, acct, at, version); err != nil {
		return Server{}, err
	}
	// Between finding a free port and using it, another program can take it.
	const attempts = 5
	for attempt := 1; ; attempt++ {
		s, err := launch(ctx, e, acct, at)
		if errors.Is(err, errPortTaken) && attempt < attempts {
			continue
		}
		if err != nil {
			return Server{}, err
		}
		s.Version = version
		if err := writeServer(at.info, s); err != nil {
			return Server{}, err
		}
		h.say("%s %s ready on 127.0.0.1:%d (%.1fs)", e.name(), version, s.Port, time.Since(begun).Seconds())
		return s, nil
	}
}

// fill puts an initialised data folder in place: a copy of the template for
// this version, which is made first if there is none. The template is built in
// the instance's folder and renamed when complete, so a template that exists is
// whole, and one that was interrupted is swept with its instance.
func (h *Home) fill(ctx context.Context, e engine, acct account, at place, version string) error {
	template := filepath.Join(h.dir, "templates", templateName(e, acct, version))
	if _, err := os.Stat(template); err == nil {
		// -p keeps the modes that PostgreSQL insists on.
		return runStep(ctx, acct, at, step{argv: []string{"cp", "-Rp", template, at.data}})
	}
	for _, s := range e.recipe(at.data) {
		if err := runStep(ctx, acct, at, s); err != nil {
			return err
		}
	}
	building := filepath.Join(at.dir, "template")
	if err := runStep(ctx, acct, at, step{argv: []string{"cp", "-Rp", at.data, building}}); err != nil {
		return err
	}
	// Two first runs at once both build; the second to rename finds the place
	// taken and keeps its own copy until its instance is removed.
	_ = os.Rename(building, template)
	return nil
}

// templateName changes with everything that shapes the folder: the version,
// the recipe, and the user it belongs to.
func templateName(e engine, acct account, version string) string {
	sum := sha256.Sum256(fmt.Append(nil, e.recipe("DATA"), acct.name))
	return fmt.Sprintf("%s-%s-%x", e.name(), version, sum[:4])
}

func runStep(ctx context.Context, acct account, at place, s step) error {
	cmd := acct.command(ctx, at.dir, s.argv[0], s.argv[1:]...)
	cmd.Stdin = strings.NewReader(s.stdin)
	// A cancelled step may leave a child that holds the output open.
	cmd.WaitDelay = 2 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", filepath.Base(s.argv[0]), err, tail(string(out), 60))
	}
	return nil
}

// errPortTaken says that another program took the port first.
var errPortTaken = errors.New("port taken")

// launch starts the server on a free port and waits until it accepts
// connections. The process outlives ctx; a launch that fails leaves none.
func launch(ctx context.Context, e engine, acct account, at place) (Server, error) {
	port, err := freePort(ctx)
	if err != nil {
		return Server{}, err
	}
	logFile, err := os.OpenFile(at.log, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Server{}, err
	}
	defer func() { _ = logFile.Close() }()
	argv := e.argv(at, port)
	detached := context.WithoutCancel(ctx)
	cmd := acct.command(detached, at.data, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return Server{}, err
	}
	// The goroutine reaps the server: it ends when the server does, or with
	// this program when "start" leaves the server running.
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	if err := awaitReady(ctx, e, at, exited); err != nil {
		return Server{}, errors.Join(err, stopServers(detached, at.dir))
	}
	return Server{
		Name: e.name(), Port: port, DSN: e.dsn(port), Env: e.env(), User: acct.name,
		Data: at.data, Log: at.log, Argv: argv,
	}, nil
}

func awaitReady(ctx context.Context, e engine, at place, exited <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience,
		fmt.Errorf("%s did not get ready within %v", e.name(), startPatience))
	defer cancel()
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for {
		log, err := os.ReadFile(at.log)
		if err != nil {
			return err
		}
		if e.ready(at, string(log)) {
			return nil
		}
		select {
		case err := <-exited:
			log, _ := os.ReadFile(at.log) // what cannot be read is not shown
			if e.portTaken(string(log)) {
				return errPortTaken
			}
			return fmt.Errorf("%s ended while starting (%w); the end of its log:\n%s", e.name(), exitErr(err), tail(string(log), 20))
		case <-ctx.Done():
			return fmt.Errorf("%w; the end of its log:\n%s", context.Cause(ctx), tail(string(log), 20))
		case <-tick.C:
		}
	}
}

// exitErr gives an exit with status 0 a name: for a server that should be
// running it is a failure too.
func exitErr(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// freePort asks the kernel for a loopback port that nobody listens on.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func writeServer(path string, s Server) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	// Readers of a kept instance must not see half a file.
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readServer(path string) (Server, error) {
	var s Server
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// EngineNames returns the servers that Start knows.
func EngineNames() []string { return []string{testserver.PostgresName, testserver.MariaDBName} }
