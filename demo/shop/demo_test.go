package shop

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main function of inventories.
func TestMain(m *testing.M) {
	if Inventory() {
		return
	}
	goleak.VerifyTestMain(m)
}

// buffer collects output, and calls seen with all of it after each line.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	seen func(text string)
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.text.Write(p)
	if b.seen != nil {
		b.seen(b.text.String())
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestOnce checks that the fixed scenario injects every fault, keeps every
// promise, and prints the proof and its queries.
func TestOnce(t *testing.T) {
	t.Parallel()
	var out buffer
	if err := Run(t.Context(), Config{Line: &Webhooks{}, Out: &out, Once: true, ShowSQL: true}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for i, one := range promises {
		if !strings.Contains(out.String(), "✔ "+string(rune('1'+i))+" "+one.name) {
			t.Errorf("the proof does not show that %q was kept", one.name)
		}
		if !strings.Contains(out.String(), one.sql) {
			t.Errorf("--show-sql does not print the query of %q", one.name)
		}
	}
	for kind, info := range infosFor((&Webhooks{}).Words()) {
		if !strings.Contains(out.String(), info.long) || strings.Contains(out.String(), " 0 "+fault(kind).String()) {
			t.Errorf("%s: not injected", fault(kind))
		}
	}
	if !strings.Contains(out.String(), "\nKEPT ") {
		t.Errorf("no verdict:\n%s", out.String())
	}
}

// TestSabotage checks that each kind breaks its promise, and that the proof
// names the promise and the event.
func TestSabotage(t *testing.T) {
	for kind, promise := range map[Sabotage]int{Lose: 2, Double: 2, Reorder: 4} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			var out buffer
			err := Run(t.Context(), Config{Line: &Webhooks{}, Out: &out, Sabotage: kind})
			var broken *BrokenError
			if !errors.As(err, &broken) || broken.Promise != promise {
				t.Fatalf("promise %d is not broken: %v\n%s", promise, err, out.String())
			}
			id := regexp.MustCompile(`event ([0-9A-Z]{26}) `).FindStringSubmatch(err.Error())
			if id == nil {
				t.Fatalf("no event is named: %v", err)
			}
			_, verdict, _ := strings.Cut(out.String(), "\nBROKEN\n")
			if !strings.Contains(verdict, promises[promise-1].name) || !strings.Contains(verdict, id[1]) {
				t.Errorf("the verdict does not show it:\n%s", out.String())
			}
		})
	}
}

// TestInterrupt checks that the demo delivers all events in flight and prints a
// verdict after its context ends.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := filepath.Join(t.TempDir(), "shop")
	out := &buffer{seen: func(text string) {
		if strings.Contains(text, " applied; ") {
			cancel()
		}
	}}
	if err := Run(ctx, Config{Line: &Webhooks{}, Out: out, Dir: dir}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	_, after, drained := strings.Cut(out.String(), "\ndraining: ")
	if !drained || !strings.Contains(after, "\nverdict ") || !strings.Contains(after, "\nKEPT ") {
		t.Errorf("no verdict after the interrupt:\n%s", out.String())
	}
	if strings.Contains(after, "in flight\n") {
		t.Errorf("the verdict came before everything had arrived:\n%s", out.String())
	}
	if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
		t.Errorf("--dir does not keep the tables: %v", err)
	}
	if err := Run(t.Context(), Config{Line: &Webhooks{}, Out: out, Dir: dir}); !errors.Is(err, ErrConfig) {
		t.Errorf("a folder with a database in it is used again: %v", err)
	}
}

// TestConfig checks that all invalid fields are reported, and nothing is done.
func TestConfig(t *testing.T) {
	var out buffer
	err := Run(t.Context(), Config{Line: &Webhooks{}, Out: &out, Rate: -1, Duration: -1, Listen: "0.0.0.0:80", Sabotage: "burn", Dir: t.TempDir()})
	if !errors.Is(err, ErrConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"rate", "duration", "loopback", `"burn"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if out.String() != "" {
		t.Errorf("the demo started: %s", out.String())
	}
}
