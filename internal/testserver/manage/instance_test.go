//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

func TestSweepRemovesWhatDeadOwnersLeft(t *testing.T) {
	h := testHome(t)
	left := filepath.Join(h.dir, "run-1-left")
	// its creator died before locking it
	unlocked := filepath.Join(h.dir, "run-2-unlocked")
	other := filepath.Join(h.dir, "notes")
	for _, dir := range []string{filepath.Join(left, "postgres", "data"), unlocked, other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(left, "lock"), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	orphan := pretend(t, "postgres", filepath.Join(left, "postgres", "data"))

	in, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	orphan.mustEnd(t)
	for _, dir := range []string{left, unlocked} {
		if exists(dir) {
			t.Errorf("%s is still there", dir)
		}
	}
	for _, dir := range []string{other, in.dir, filepath.Join(h.dir, "templates")} {
		if !exists(dir) {
			t.Errorf("%s is gone", dir)
		}
	}
}

func TestSweepLeavesInstancesInUse(t *testing.T) {
	h := testHome(t)
	first, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !exists(first.dir) || first.dir == second.dir {
		t.Fatalf("instances are %s and %s, want two", first.dir, second.dir)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(first.dir) || !exists(second.dir) {
		t.Error("Stop must remove its own folder and no other")
	}
}

// TestStopWhileAnotherSweeps: a sweep during the removal of a folder leaves
// nothing in it.
func TestStopWhileAnotherSweeps(t *testing.T) {
	h := testHome(t)
	ctx, cancel := context.WithCancel(t.Context())
	var sweeps sync.WaitGroup
	defer sweeps.Wait()
	defer cancel()
	sweeps.Go(func() {
		for ctx.Err() == nil {
			lock, err := h.lockHome(ctx)
			if err != nil {
				return
			}
			err = h.sweep(ctx)
			lock.unlock()
			if err != nil {
				t.Error(err)
			}
			if _, err := h.List(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		in, err := h.newInstance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 300 { // removing them takes a moment
			if err := os.WriteFile(filepath.Join(in.dir, strconv.Itoa(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := in.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if exists(in.dir) {
			t.Errorf("%s is left", in.dir)
		}
	}
}

func TestSweepLeavesTheKeptInstance(t *testing.T) {
	h := testHome(t)
	kept := filepath.Join(h.dir, keptName)
	if err := os.Mkdir(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	server := pretend(t, "mariadbd", kept)
	if _, err := h.newInstance(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.mustLive(t)
	if err := h.StopKept(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.mustEnd(t)
	if exists(kept) {
		t.Error("stop left the kept instance's folder")
	}
}

func TestRemoveRefusesOtherFolders(t *testing.T) {
	h := testHome(t)
	outside := filepath.Join(t.TempDir(), "run-1-x")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{outside, h.dir, filepath.Join(h.dir, "templates"), filepath.Join(h.dir, "run-1", "x")} {
		if err := h.remove(t.Context(), dir); err == nil {
			t.Errorf("remove(%s) succeeded", dir)
		}
	}
	if !exists(outside) || !exists(filepath.Join(h.dir, "templates")) {
		t.Error("a folder was removed")
	}
}

func TestListNamesOwners(t *testing.T) {
	h := testHome(t)
	if _, err := h.newInstance(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{keptName, "run-9-gone"} {
		if err := os.Mkdir(filepath.Join(h.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	list, err := h.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var owners []string
	for _, s := range list {
		word, _, _ := strings.Cut(s.Owner, " ")
		owners = append(owners, word)
	}
	slices.Sort(owners)
	if want := []string{"in", "kept", "left"}; !slices.Equal(owners, want) {
		t.Errorf("owners begin with %v, want %v", owners, want)
	}
}

func TestLockIsExclusiveAndWaitsUntilCanceled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := tryLockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryLockFile(path); !errors.Is(err, errLocked) {
		t.Errorf("second lock: %v, want errLocked", err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if _, err := lockFile(ctx, path); !errors.Is(err, enough) {
		t.Errorf("canceled wait: %v, want its cause", err)
	}
	got := make(chan error)
	go func() {
		l, err := lockFile(t.Context(), path)
		l.unlock()
		got <- err
	}()
	held.unlock()
	if err := <-got; err != nil {
		t.Errorf("wait for a lock that is freed: %v", err)
	}
}

func TestPrepareUsesServersThatTheEnvironmentNames(t *testing.T) {
	h := testHome(t)
	listener := listen(t)
	t.Setenv(testserver.EnvPostgres, "postgres://u:secret@"+listener+"/db")
	t.Setenv(testserver.EnvMariaDB, "u:secret@tcp("+listener+")/db")
	t.Setenv(testserver.EnvMySQL, "u:secret@tcp("+listener+")/db")
	t.Setenv(testserver.EnvRedis, "redis://"+listener+"/0")
	t.Setenv(testserver.EnvRabbitMQ, "amqp://guest:guest@"+listener+"/")
	chosen, err := h.prepare(t.Context(), Request{})
	if err != nil || len(chosen) != 0 {
		t.Errorf("prepare chose %d engines, %v; want none", len(chosen), err)
	}
}

func TestPrepareReportsAnAddressThatDoesNotAnswer(t *testing.T) {
	h := testHome(t)
	ports, err := freePorts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(testserver.EnvPostgres, postgres{}.dsn(ports[0]))
	_, err = h.prepare(t.Context(), Request{Only: []string{testserver.PostgresName}})
	if err == nil || !strings.Contains(err.Error(), "unset "+testserver.EnvPostgres) {
		t.Errorf("prepare = %v, want a hint to unset %s", err, testserver.EnvPostgres)
	}
}

func TestPrepareRefusesUnknownNames(t *testing.T) {
	if _, err := testHome(t).prepare(t.Context(), Request{Only: []string{"oracle"}}); err == nil {
		t.Error("prepare accepted a server called oracle")
	}
}

func TestAddressIn(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:p@127.0.0.1:5433/db?sslmode=disable": "127.0.0.1:5433",
		"u:p@tcp(127.0.0.1:3307)/db?parseTime=true":        "127.0.0.1:3307",
		"postgres://u:p@/db?host=/run/postgresql":          "",
		"host=127.0.0.1 port=5433":                         "",
		"u:p@unix(/run/mysqld.sock)/db":                    "",
		"127.0.0.1:9092":                                   "127.0.0.1:9092",
		"amqp://guest:guest@127.0.0.1:5672/":               "127.0.0.1:5672",
		"pulsar://127.0.0.1:6650":                          "127.0.0.1:6650",
	} {
		if got := addressIn(dsn); got != want {
			t.Errorf("addressIn(%q) = %q, want %q", dsn, got, want)
		}
	}
}
