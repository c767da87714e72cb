package repocheck_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// outside is a service in a module of its own. It uses the driver and the
// store, and requires no version of either.
const outside = `package main

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

func open(pool *pgxpool.Pool) (*outbox.Outbox[pgx.Tx], error) {
	db, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return nil, err
	}
	return outbox.New(db, outbox.Config{})
}

func main() { _, _ = open(nil) }
`

// TestAModuleOutside builds a service outside the repository. "go mod tidy"
// selects the newest pgx for it, regardless of the version that this repository
// requires, so the store has to build with the newest version. Without a module
// proxy, tidy selects the version that pgstore requires.
func TestAModuleOutside(t *testing.T) {
	root, dir := docblock.Root(t), t.TempDir()
	named := goList(t, filepath.Join(root, "store", "pgstore"), "-m", "-f", "{{.Version}}", "github.com/jackc/pgx/v5")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const waybill = "github.com/waybillhq/waybill"
	mod := fmt.Sprintf("module example.com/service\n\ngo 1.26.0\n\nreplace %s => %s\n\nreplace %s/store/pgstore => %s\n",
		waybill, root, waybill, filepath.Join(root, "store", "pgstore"))
	write("main.go", outside)
	write("go.mod", mod)
	if out, err := goIn(t, dir, "mod", "tidy"); err != nil {
		t.Logf("no newest version without a module proxy; with %s instead: %s", named, out)
		write("go.mod", mod+"\nrequire github.com/jackc/pgx/v5 "+named+"\n")
		if out, err := goIn(t, dir, "mod", "tidy"); err != nil {
			t.Skipf("no module proxy, and the module cache lacks what tests of requirements need: %s", out)
		}
	}
	chosen := goList(t, dir, "-m", "-f", "{{.Version}}", "github.com/jackc/pgx/v5")
	if out, err := goIn(t, dir, "build", "-o", os.DevNull, "."); err != nil {
		t.Errorf("a service with pgx %s, which go mod tidy chooses, does not build (pgstore names %s): %v\n%s", chosen, named, err, out)
	}
}

// goIn runs the go command in a folder, without a workspace.
func goIn(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false -trimpath")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func goList(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := goIn(t, dir, append([]string{"list"}, args...)...)
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}
