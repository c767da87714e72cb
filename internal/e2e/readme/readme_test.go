package readme_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// overlay overlays files on the module, without writing them there, and returns
// the flag for the go command.
func overlay(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for name, text := range files {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, name)] = file
	}
	data, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return "-overlay=" + list
}

// goTool runs the go command in the module's folder.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestFirstProgram: the program in the README runs and prints the output in the
// README.
func TestFirstProgram(t *testing.T) {
	block := docblock.Blocks(t, "docs/guide.md", "go")[0]
	if !strings.HasPrefix(block, "package main") {
		t.Fatal("the first Go block of the README is not a program")
	}
	binary := filepath.Join(t.TempDir(), "shop")
	goTool(t, "build", overlay(t, map[string]string{"shop/main.go": block}), "-o", binary, "./shop")
	dir, want := t.TempDir(), docblock.Blocks(t, "docs/guide.md", "text")[0]
	// a reader runs it twice
	for _, want := range []string{want, strings.Replace(want, "A-1", "A-2", 1)} {
		cmd := exec.CommandContext(t.Context(), binary)
		cmd.Dir = dir
		var logs strings.Builder
		cmd.Stderr = &logs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s%s", err, out, &logs)
		}
		if string(out) != want {
			t.Errorf("it prints %q, and the README says %q", out, want)
		}
		if !strings.Contains(logs.String(), "relay started") {
			t.Errorf("the relay logs %q, and the README says that it logs to slog.Default", &logs)
		}
	}
}

// frame is the frame of the README's fragments.
const frame = `package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/pgstore"
)

type Placed struct{ Total int }

var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

type Order struct{ waybill.Log }

func (o *Order) Place() { o.Raise(OrderPlaced.New("A-3", Placed{})) }

func tenantOf(*http.Request) (httpkey.Scope, error) { return httpkey.Scope{Tenant: "acme"}, nil }

func placeOrder(*testing.T, *outbox.Outbox[pgx.Tx]) {}

type stock struct{}

func (stock) Reserve(context.Context, waybill.ID, int) error { return nil }

var (
	warehouse      stock
	billing        waybill.Sink
	partner        waybill.Sink
	inventory      *inbox.Group[pgx.Tx]
	mux            = handler.NewMux()
	errUnreachable = errors.New("unreachable")
	errNoSuchOrder = errors.New("no such order")

	_ http.Handler
	_ httpkey.Config
	_ idempotency.Config
	_ redisbroker.Config
	_ inbox.Config
	_ admin.Retention
	_ relay.Config
	_ store.Filter
	_ = errors.As
	_ = fmt.Println
	_ outboxtest.Recorder
	_ pgstore.Config
)

func main() {}

func fragment(ctx context.Context, t *testing.T, pool *pgxpool.Pool, box *outbox.Outbox[pgx.Tx], db *pgstore.Store, order *Order, sink waybill.Sink, err error) error {
	{
BLOCK
	}
	return err
}
`

// TestFragments: the README's fragments compile.
func TestFragments(t *testing.T) {
	for _, block := range append(docblock.Blocks(t, "README.md", "go"), docblock.Blocks(t, "docs/guide.md", "go")[1:]...) {
		title, _, _ := strings.Cut(strings.TrimSpace(block), "\n")
		t.Run(title, func(t *testing.T) {
			text := strings.Replace(frame, "BLOCK", block, 1)
			// Unused variables are fine in a fragment.
			text = strings.Replace(text, "\n\t}\n\treturn err", "\n_, _, _, _, _ = box, err, db, order, sink\n\t}\n\treturn err", 1)
			goTool(t, "build", overlay(t, map[string]string{"fragment/main.go": text}), "-o", os.DevNull, "./fragment")
		})
	}
}

// TestFirstCommand: the first command of the README compiles the demo and
// proves it, without any variable of the Makefile.
func TestFirstCommand(t *testing.T) {
	command := strings.Fields(docblock.Blocks(t, "README.md", "sh")[0])
	if !slices.Equal(command[:3], []string{"go", "run", "-C"}) {
		t.Fatalf("the first command is %q", command)
	}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], "--once")...)
	cmd.Dir = docblock.Root(t)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOWORK=") })
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, want := range []string{
		" s  compiled\n", "dashboard: http://127.0.0.1:", "kill -9 of the inventory before its commit", "✔ 5 one key", "\nKEPT ",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the output has no %q:\n%s", want, text)
		}
	}
}
