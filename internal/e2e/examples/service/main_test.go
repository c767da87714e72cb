package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// database creates a database and returns its URL and a connection to it.
func database(t *testing.T) (string, *pgx.Conn) {
	t.Helper()
	server := testserver.Postgres(t)
	name := "service_" + strings.ToLower(waybill.NewID().String())
	connect := func(to string) *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		return conn
	}
	if _, err := connect(server).Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String(), connect(u.String())
}

// process is the running program.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
}

func start(t *testing.T, program, database string) *process {
	t.Helper()
	cmd := exec.Command(program) //nolint:noctx // it is stopped below
	cmd.Env = append(os.Environ(), "ADDR=127.0.0.1:0", "DATABASE_URL="+database)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "Listening on ")
	if err != nil || !ok {
		t.Fatalf("it says %q, %v", line, err)
	}
	return &process{t, cmd, address}
}

func (p *process) call(method, path, key, body string) (int, string, error) {
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.address+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "ada")
	if key != "" {
		r.Header.Set("Idempotency-Key", `"`+key+`"`)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// must is call for a request that must succeed.
func (p *process) must(want int, method, path, key, body string) string {
	p.t.Helper()
	status, text, err := p.call(method, path, key, body)
	if err != nil || status != want {
		p.t.Fatalf("%s %s: %d %q, %v", method, path, status, text, err)
	}
	return text
}

// until polls until a query returns true.
func until(t *testing.T, conn *pgx.Conn, query string, args ...any) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		var ok bool
		if err := conn.QueryRow(t.Context(), query, args...).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s stays false", query)
		}
	}
}

// TestService: an order is placed once and reserved once, the metrics count it,
// and SIGTERM ends the process in order: the request in flight gets its answer,
// the lanes are free, and the next process continues.
func TestService(t *testing.T) {
	db, conn := database(t)
	program := filepath.Join(t.TempDir(), "service")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := start(t, program, db)
	p.must(http.StatusOK, "GET", "/readyz", "", "")
	first := p.must(http.StatusCreated, "POST", "/orders", "1", `{"sku":"tea"}`)
	if again := p.must(http.StatusCreated, "POST", "/orders", "1", `{"sku":"tea"}`); again != first {
		t.Errorf("the repeat gets %s, the first %s", again, first)
	}
	p.must(http.StatusBadRequest, "POST", "/orders", "2", `{}`)
	until(t, conn, `SELECT count(*) = 1 AND bool_and(reserved) FROM orders`)
	until(t, conn, `SELECT count(*) = 0 FROM waybill_outbox`)
	for _, want := range []string{`waybill_written_total{event_type="OrderPlaced"} 1`, `waybill_dispatch_success_total{event_type="OrderPlaced"} 1`} {
		if page := p.must(http.StatusOK, "GET", "/metrics", "", ""); !strings.Contains(page, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}

	// A request waits in the database while the process is told to stop.
	lock, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `LOCK TABLE orders IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	answered := make(chan string, 1)
	go func() {
		status, text, err := p.call("POST", "/orders", "3", `{"sku":"milk"}`)
		answered <- fmt.Sprint(status, text, err)
	}()
	until(t, conn, `SELECT count(*) > 0 FROM pg_locks WHERE NOT granted`)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	closed(t, p.address)
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; !strings.HasPrefix(got, "201") || !strings.Contains(got, "milk") {
		t.Errorf("the request in flight gets %s", got)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the process ends with %v", err)
	}
	var owned int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM waybill_lane WHERE owner IS NOT NULL`).Scan(&owned); err != nil || owned != 0 {
		t.Errorf("%d lanes have an owner, %v", owned, err)
	}

	p = start(t, program, db)
	until(t, conn, `SELECT count(*) = 2 AND bool_and(reserved) FROM orders`)
	if again := p.must(http.StatusCreated, "POST", "/orders", "1", `{"sku":"tea"}`); again != first {
		t.Errorf("after the restart the repeat gets %s, the first %s", again, first)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the process ends with %v", err)
	}
}

// closed waits until nothing accepts connections at an address.
func closed(t *testing.T, address string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			return
		}
		_ = conn.Close()
	}
	t.Fatal("the process still accepts connections")
}

// TestBroken: a service without its database ends with an error.
func TestBroken(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/none?connect_timeout=1")
	if err := run(t.Context()); err == nil {
		t.Error("no error")
	}
}
