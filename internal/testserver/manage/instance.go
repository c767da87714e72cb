//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/waybillhq/waybill/internal/testserver"
)

// Names of instance folders. Nothing else in the home folder is ever removed.
const (
	keptName  = "kept"
	runPrefix = "run-"
)

// Instance is a set of running servers with a folder of its own.
type Instance struct {
	home    *Home
	dir     string
	lock    *fileLock // nil for the kept instance, which has no owner
	Servers []Server
}

// Request selects the servers to start.
type Request struct {
	// Only names the servers to start. Defaults to QuickNames.
	Only []string
	// Private also starts servers for which the environment names one.
	Private bool
	// RaceTools also ensures a C compiler, which the race detector needs.
	RaceTools bool
	// Shells also ensures the databases' command line clients.
	Shells bool
	// Secure, if not nil, makes Kafka and Pulsar also listen with TLS, at the
	// last of their ports. PostgreSQL, MariaDB and MySQL then accept no
	// connections without TLS.
	Secure *Certificates
	// NoSync makes MariaDB and MySQL answer before the disk has the data: they
	// create and drop tables faster, and are no measure of a commit's time.
	NoSync bool
	// Galera makes MariaDB the only node of a Galera cluster.
	Galera bool
}

// Certificates are PEM files.
type Certificates struct {
	// Cert and Key are the server's; CA is the authority of clients, which must
	// present a certificate.
	Cert, Key, CA string
}

// copies returns copies of the files in the server's folder, which its account
// can read, and their names.
func (c *Certificates) copies(at place) (files map[string]string, names Certificates) {
	files = make(map[string]string)
	put := func(name, from string) string {
		// The server reports an empty file.
		text, _ := os.ReadFile(from)
		to := filepath.Join(at.dir, name)
		files[to] = string(text)
		return to
	}
	return files, Certificates{Cert: put("server.pem", c.Cert), Key: put("server.key", c.Key), CA: put("ca.pem", c.CA)}
}

// securer is an engine that can listen with TLS.
type securer interface {
	secured(c Certificates) engine
}

// unsyncer is an engine that can run without waiting for the disk.
type unsyncer interface {
	// noSync returns the arguments that override those of start.
	noSync() []string
}

// unsynced is an engine that runs with these arguments.
type unsynced struct {
	engine
	args []string
}

func (u unsynced) start(at place, ports []int) command {
	c := u.engine.start(at, ports)
	c.argv = append(c.argv, u.args...)
	return c
}

// shells are the clients that tests run.
func shells() []program {
	return []program{
		{names: []string{"psql"}, packages: []string{"postgresql-client"}, optional: true},
		{names: []string{"pgbouncer"}, packages: []string{"pgbouncer"}, optional: true},
		{names: []string{"mariadb"}, packages: []string{"mariadb-client"}, optional: true},
		{names: []string{"sqlite3"}, packages: []string{"sqlite3"}, optional: true},
		// Without a font a page has no letters.
		{names: []string{"chromium"}, packages: []string{"chromium", "fonts-dejavu-core"}, optional: true},
		{names: []string{"hugo"}, packages: []string{"hugo"}, optional: true},
	}
}

// Run starts servers for the lifetime of the caller. The caller must Stop the
// instance; if the caller dies first, the next Run does.
func (h *Home) Run(ctx context.Context, req Request) (*Instance, error) {
	chosen, err := h.prepare(ctx, req)
	if err != nil {
		return nil, err
	}
	in, err := h.newInstance(ctx)
	if err != nil {
		return nil, err
	}
	if err := in.start(ctx, chosen); err != nil {
		return nil, errors.Join(err, in.Stop(context.WithoutCancel(ctx)))
	}
	return in, nil
}

// Keep starts servers that outlive the caller, until StopKept. Servers of an
// earlier Keep that still run are reused.
func (h *Home) Keep(ctx context.Context, req Request) (*Instance, error) {
	chosen, err := h.prepare(ctx, req)
	if err != nil {
		return nil, err
	}
	lock, err := h.lockHome(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.unlock()
	if err := h.sweep(ctx); err != nil {
		return nil, err
	}
	in, err := h.kept(ctx)
	if err != nil {
		return nil, err
	}
	var absent []engine
	for _, e := range chosen {
		if !slices.ContainsFunc(in.Servers, func(s Server) bool { return s.Name == e.name() }) {
			absent = append(absent, e)
		}
	}
	for _, e := range absent {
		if err := in.clear(ctx, e.name()); err != nil {
			return nil, err
		}
	}
	if err := in.start(ctx, absent); err != nil {
		return nil, err
	}
	return in, nil
}

// Kept returns the instance that Keep created, with its running servers.
func (h *Home) Kept(ctx context.Context) (*Instance, error) {
	in := &Instance{home: h, dir: filepath.Join(h.dir, keptName)}
	return in, in.load(ctx)
}

// StopKept ends the servers that Keep started, and sweeps instances of dead
// runs.
func (h *Home) StopKept(ctx context.Context) error {
	lock, err := h.lockHome(ctx)
	if err != nil {
		return err
	}
	defer lock.unlock()
	err = h.remove(ctx, filepath.Join(h.dir, keptName))
	return errors.Join(err, h.sweep(ctx))
}

// prepare selects engines, skipping those for which the environment already
// names a server, and installs their requirements.
func (h *Home) prepare(ctx context.Context, req Request) ([]engine, error) {
	only := req.Only
	if len(only) == 0 {
		only = QuickNames()
	}
	if err := CheckNames(only); err != nil {
		return nil, err
	}
	var chosen []engine
	var want []program
	for _, e := range engines() {
		switch {
		case !slices.Contains(only, e.name()):
		case !req.Private && os.Getenv(e.env()) != "":
			if err := answers(ctx, e.env(), os.Getenv(e.env())); err != nil {
				return nil, err
			}
			h.say("%s is named by %s: using that one", e.name(), e.env())
		default:
			if s, ok := e.(securer); ok && req.Secure != nil {
				e = s.secured(*req.Secure)
			}
			chosen = append(chosen, e)
			want = append(want, e.programs()...)
		}
	}
	if req.Shells {
		want = append(want, shells()...)
	}
	if err := h.install(ctx, want, req.RaceTools); err != nil {
		return nil, err
	}
	for _, e := range chosen {
		if f, ok := e.(fetcher); ok {
			if err := f.fetch(ctx, h); err != nil {
				return nil, fmt.Errorf("fetch %s: %w", e.name(), err)
			}
		}
	}
	for i, e := range chosen {
		if m, ok := e.(mariadb); ok && req.Galera {
			chosen[i] = galera{m}
			continue
		}
		if u, ok := e.(unsyncer); ok && req.NoSync {
			chosen[i] = unsynced{e, u.noSync()}
		}
	}
	return chosen, nil
}

// lockHome takes the lock under which instances are created and swept. Without
// it, a sweep could find a folder between its creation and its locking, and
// consider it abandoned.
func (h *Home) lockHome(ctx context.Context) (*fileLock, error) {
	return lockFile(ctx, filepath.Join(h.dir, "lock"))
}

// newInstance sweeps instances of dead runs and creates a folder that this
// process owns.
func (h *Home) newInstance(ctx context.Context) (*Instance, error) {
	homeLock, err := h.lockHome(ctx)
	if err != nil {
		return nil, err
	}
	defer homeLock.unlock()
	if err := h.sweep(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(h.dir, fmt.Sprintf("%s%d-", runPrefix, os.Getpid()))
	if err != nil {
		return nil, err
	}
	// Servers run as other users, which must be able to enter the folder.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := tryLockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	if err := lock.sign(); err != nil {
		lock.unlock()
		return nil, err
	}
	return &Instance{home: h, dir: dir, lock: lock}, nil
}

// kept creates or loads the folder of the kept instance. The home must be
// locked.
func (h *Home) kept(ctx context.Context) (*Instance, error) {
	in := &Instance{home: h, dir: filepath.Join(h.dir, keptName)}
	if err := errors.Join(os.MkdirAll(in.dir, 0o755), os.Chmod(in.dir, 0o755)); err != nil {
		return nil, err
	}
	return in, in.load(ctx)
}

// sweep stops and removes the instances whose owner is dead. The home must be
// locked. An instance that cannot be removed (because root created it, for
// example) does not stop this run, so it is reported and skipped.
func (h *Home) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		dir := filepath.Join(h.dir, e.Name())
		lock, err := tryLockFile(filepath.Join(dir, "lock"))
		if errors.Is(err, errLocked) {
			continue
		}
		owner := signature(filepath.Join(dir, "lock"))
		if err == nil {
			err = h.remove(ctx, dir)
		}
		lock.unlock()
		if err != nil {
			h.say("warning: cannot sweep %s: %v", dir, err)
			continue
		}
		h.say("swept %s, left behind by process %s", e.Name(), owner)
	}
	return nil
}

// remove stops the servers of an instance folder and deletes the folder. The
// home must be locked.
func (h *Home) remove(ctx context.Context, dir string) error {
	name := filepath.Base(dir)
	if filepath.Dir(dir) != h.dir || name != keptName && !strings.HasPrefix(name, runPrefix) {
		return fmt.Errorf("%s is not an instance folder of %s", dir, h.dir)
	}
	if err := stopServers(ctx, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Dir returns the instance's folder.
func (in *Instance) Dir() string { return in.dir }

// start starts engines concurrently and adds them to the instance's servers.
func (in *Instance) start(ctx context.Context, chosen []engine) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	servers := make([]Server, len(chosen))
	errs := make([]error, len(chosen))
	var wg sync.WaitGroup
	for i, e := range chosen {
		wg.Go(func() {
			if servers[i], errs[i] = in.home.startEngine(ctx, e, in.dir); errs[i] != nil {
				errs[i] = fmt.Errorf("start %s: %w", e.name(), errs[i])
				// one failure fails the start: do not wait for the others
				cancel()
			}
		})
	}
	wg.Wait()
	in.Servers = append(in.Servers, servers...)
	return errors.Join(errs...)
}

// load reads the descriptions of the servers in the folder that still run.
func (in *Instance) load(ctx context.Context) error {
	in.Servers = nil
	for _, e := range engines() {
		at := placeOf(in.dir, e.name())
		s, err := readServer(at.info)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		running, err := serversIn(ctx, at.dir)
		if err != nil {
			return err
		}
		if len(running) > 0 {
			in.Servers = append(in.Servers, s)
		}
	}
	return nil
}

// clear removes the files of a server that no longer runs.
func (in *Instance) clear(ctx context.Context, name string) error {
	at := placeOf(in.dir, name)
	if err := stopServers(ctx, at.dir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(at.dir), os.RemoveAll(at.info), os.RemoveAll(at.log))
}

// Env returns the environment variables for tests, as NAME=VALUE.
func (in *Instance) Env() []string {
	env := []string{
		testserver.EnvServers + "=" + in.home.dir,
		testserver.EnvInstance + "=" + in.dir,
	}
	for _, s := range in.Servers {
		env = append(append(env, s.Env+"="+s.DSN), s.Also...)
	}
	return env
}

// Stop ends the servers and removes the folder with the home locked: a sweep
// that finds a folder without its lock file would create a new one, and the
// folder would not be empty when it is removed.
func (in *Instance) Stop(ctx context.Context) error {
	defer in.lock.unlock()
	// may take seconds, during which other runs start
	if err := stopServers(ctx, in.dir); err != nil {
		return err
	}
	homeLock, err := in.home.lockHome(ctx)
	if err != nil {
		return err
	}
	defer homeLock.unlock()
	return in.home.remove(ctx, in.dir)
}
