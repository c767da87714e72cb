package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// build builds the program in a folder of its own.
func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "shop")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start runs the program in its folder, as a reader of the documentation would,
// and returns its address.
func start(t *testing.T, program string) (address string, stop func()) {
	t.Helper()
	cmd := exec.Command(program) //nolint:noctx // it is interrupted below
	cmd.Dir, cmd.Env = filepath.Dir(program), append(os.Environ(), "ADDR=127.0.0.1:0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "Listening on ")
	if err != nil || !ok {
		t.Fatalf("it says %q, %v", line, err)
	}
	return address, func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("it does not end in peace: %v", err)
		}
	}
}

// answer is a response of the shop.
type answer struct {
	StatusCode int
	Header     http.Header
}

func call(t *testing.T, method, url, key, body string) (answer, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Customer", "ada")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header}, string(text)
}

func TestShop(t *testing.T) {
	program := build(t)
	address, stop := start(t, program)
	first, text := call(t, http.MethodPost, address+"/orders", `"1"`, `{"sku":"tea","quantity":2}`)
	stop()
	// the next process knows the earlier answers
	address, stop = start(t, program)
	defer stop()
	again, repeated := call(t, http.MethodPost, address+"/orders", `"1"`, `{"sku":"tea","quantity":2}`)
	if first.StatusCode != http.StatusCreated || again.StatusCode != http.StatusCreated || text != repeated ||
		again.Header.Get("Idempotent-Replayed") != "true" || again.Header.Get("Content-Type") != "application/json" || again.Header.Get("Location") != first.Header.Get("Location") {
		t.Fatalf("%d %s, then %d %s", first.StatusCode, text, again.StatusCode, repeated)
	}
	for want, c := range map[int][3]string{
		http.StatusUnprocessableEntity: {http.MethodPost, `"1"`, `{"sku":"tea","quantity":3}`},
		http.StatusBadRequest:          {http.MethodPost, "", `{"sku":"tea","quantity":3}`},
	} {
		if resp, text := call(t, c[0], address+"/orders", c[1], c[2]); resp.StatusCode != want {
			t.Errorf("%d %s, want %d", resp.StatusCode, text, want)
		}
	}
	if resp, text := call(t, http.MethodGet, address+"/orders/ord_1", "", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	// The event is delivered, and the inventory reserves the goods.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for {
		resp, text := call(t, http.MethodGet, address+first.Header.Get("Location"), "", "")
		var o Order
		if err := json.Unmarshal([]byte(text), &o); resp.StatusCode != http.StatusOK || err != nil || o.SKU != "tea" || o.Quantity != 2 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		if o.State == "reserved" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the goods are not reserved: %s", text)
		}
	}
}
