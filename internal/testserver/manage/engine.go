//go:build linux || darwin

package manage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// startPatience bounds how long a server may take until it serves clients. Java
// servers need a minute on a loaded machine with slow disks.
const startPatience = 3 * time.Minute

// engine is one kind of server. Its methods only describe; this file runs and
// waits in the same way for each engine.
type engine interface {
	// name is the engine's name on the command line, in folders and in
	// messages.
	name() string
	// env is the variable that carries the address.
	env() string
	// account is the system user that the engine's package creates. Empty is
	// the user of this program.
	account() string
	// programs lists the required programs, the server itself first.
	programs() []program
	// version returns the version of the installed server, such as 15.3.
	version(ctx context.Context) (string, error)
	// recipe returns the commands that fill an empty data folder.
	recipe(data string) []step
	// ports is the number of ports of the server. Tests know the first.
	ports() int
	// start returns the command that serves the data folder on these ports.
	start(at place, ports []int) command
	// ready reports whether exactly this process serves clients, and not
	// another one that has the port or left a file behind.
	ready(ctx context.Context, r running) bool
	// portTaken reports whether the log says that the port was in use.
	portTaken(log string) bool
	// dsn returns the address for tests.
	dsn(port int) string
}

// step is one command of a recipe, with its input.
type step struct {
	argv  []string
	stdin string
}

// command describes how a server is started.
type command struct {
	argv    []string
	environ []string // besides the defaults, NAME=VALUE
	// configuration files by path in the server's folder
	files map[string]string
	also  []string // more variables for tests, NAME=VALUE
}

// running is a server process while it starts.
type running struct {
	at    place
	ports []int
	pid   int
	log   string // log output since the process was started
}

// fetcher is an engine that is not a system package.
type fetcher interface {
	fetch(ctx context.Context, h *Home) error
}

// copier is an engine whose data is a copy of another server's, so there is no
// template of it.
type copier interface{ copied() }

// engines returns all engines, in the order of reports.
func engines() []engine {
	all := []engine{postgres{}, mariadb{}, mysql{}, redis{}, rabbitmq{}, kafka{}, pulsar{}}
	for _, r := range releases() {
		all = append(all, postgres{release: r})
	}
	return all
}

// place holds the paths of one server of an instance.
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

// startEngine initializes and starts one server inside the instance folder.
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
	// Another program can take a free port before the server uses it.
	const attempts = 5
	for attempt := 1; ; attempt++ {
		ports, err := freePorts(ctx, e.ports())
		if err != nil {
			return Server{}, err
		}
		s, err := launch(ctx, e, acct, at, ports)
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

// fill puts an initialized data folder in place: a copy of the template for
// this version, which is created first if there is none. The template is built
// in the instance's folder and renamed when complete, so a template that exists
// is complete, and an interrupted one is swept with its instance.
func (h *Home) fill(ctx context.Context, e engine, acct account, at place, version string) error {
	if _, ok := e.(copier); ok {
		return runSteps(ctx, acct, at, e.recipe(at.data))
	}
	template := filepath.Join(h.dir, "templates", templateName(e, acct, version))
	if _, err := os.Stat(template); err == nil {
		// -p keeps the modes that PostgreSQL requires.
		return runStep(ctx, acct, at, step{argv: []string{"cp", "-Rp", template, at.data}})
	}
	if err := runSteps(ctx, acct, at, e.recipe(at.data)); err != nil {
		return err
	}
	building := filepath.Join(at.dir, "template")
	if err := runStep(ctx, acct, at, step{argv: []string{"cp", "-Rp", at.data, building}}); err != nil {
		return err
	}
	// Two concurrent first runs both build; the second rename fails, and that
	// run keeps its own copy until its instance is removed.
	_ = os.Rename(building, template)
	return nil
}

// templateName depends on everything that shapes the folder: the version, the
// recipe, and its user.
func templateName(e engine, acct account, version string) string {
	sum := sha256.Sum256(fmt.Append(nil, e.recipe("DATA"), acct.name))
	return fmt.Sprintf("%s-%s-%x", e.name(), version, sum[:4])
}

func runSteps(ctx context.Context, acct account, at place, steps []step) error {
	for _, s := range steps {
		if err := runStep(ctx, acct, at, s); err != nil {
			return err
		}
	}
	return nil
}

func runStep(ctx context.Context, acct account, at place, s step) error {
	cmd := acct.command(ctx, at.dir, s.argv[0], s.argv[1:]...)
	cmd.Stdin = strings.NewReader(s.stdin)
	// A canceled step may leave a child that holds the output open.
	cmd.WaitDelay = 2 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", filepath.Base(s.argv[0]), err, tail(string(out), 60))
	}
	return nil
}
