//go:build unix

package soak_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
	"github.com/waybillhq/waybill/internal/testserver"
)

func TestMain(m *testing.M) {
	if soak.IsChild(os.Environ()) {
		if err := soak.Child(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// short is a soak that is bounded by its number of transactions.
func short(t *testing.T, out *bytes.Buffer) soak.Config {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return soak.Config{
		For: 5 * time.Minute, Events: 120, Rate: 60, FaultEvery: 700 * time.Millisecond, Lease: time.Second, Seed: 11, Out: out,
		Command: []string{program}, Report: filepath.Join(t.TempDir(), "report"),
	}
}

// kept runs a soak and requires that it did something, and that every promise
// was kept.
func kept(t *testing.T, cfg soak.Config, out *bytes.Buffer) *soak.Report {
	t.Helper()
	r, err := soak.Run(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if r.Counts.Events < 100 || r.Counts.Applied != r.Counts.Events || r.Counts.RolledBack == 0 || r.Counts.Requests == 0 || len(r.Faults) == 0 {
		t.Errorf("the soak shows nothing:\n%s", r.Text())
	}
	for _, p := range r.Promises {
		if p.Checked == 0 {
			t.Errorf("%s was not checked:\n%s", p.Promise, r.Text())
		}
	}
	if !strings.Contains(out.String(), "every promise was kept") {
		t.Errorf("the output has no verdict:\n%s", out)
	}
	return r
}

// TestSoak: without servers, every promise is kept, the report files are there,
// and nothing else is left.
func TestSoak(t *testing.T) {
	var out bytes.Buffer
	cfg := short(t, &out)
	r := kept(t, cfg, &out)
	text, err := os.ReadFile(cfg.Report + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var again soak.Report
	if err := json.Unmarshal(text, &again); err != nil || again.Seed != 11 || again.Verdict != "kept" || again.Counts != r.Counts {
		t.Errorf("the report is %v, %+v", err, again)
	}
	if _, err := os.Stat(filepath.Join(os.TempDir(), "waybill-"+r.Run)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the run is left: %v", err)
	}
}

// TestSoakServers: on PostgreSQL and Redis every promise is kept, and neither
// server has anything of the run afterwards.
func TestSoakServers(t *testing.T) {
	var out bytes.Buffer
	cfg := short(t, &out)
	address := testserver.Redis(t)
	cfg.Store.URL, cfg.Sink.URL = settings.NewSecret(testserver.Postgres(t)), settings.NewSecret(address)
	r := kept(t, cfg, &out)
	cfg.Store.ConnectTimeout = time.Minute
	db, err := connect.OpenStore(t.Context(), cfg.Store, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // only read
	var n int
	if err := db.SQL.QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.schemata WHERE schema_name = $1`, r.Run).Scan(&n); err != nil || n > 0 {
		t.Errorf("%d schemas are left: %v", n, err)
	}
	opts, err := redis.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	defer client.Close() //nolint:errcheck // only read
	if left, err := client.Keys(t.Context(), r.Run+"*").Result(); err != nil || len(left) > 0 {
		t.Errorf("streams %v are left: %v", left, err)
	}
}

// TestCleanup: what a run left behind is removed, and nothing else.
func TestCleanup(t *testing.T) {
	var out bytes.Buffer
	cfg := short(t, &out)
	file := filepath.Join(t.TempDir(), "own.db")
	cfg.Store.URL, cfg.Keep, cfg.Events = settings.NewSecret("sqlite:"+file), true, 20
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // only read
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE own (n integer)`); err != nil {
		t.Fatal(err)
	}
	r, err := soak.Run(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	count := func() (n int) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	n, err := soak.Cleanup(t.Context(), cfg, r.Run)
	if err != nil || n == 0 || before-n != 1 || count() != 1 {
		t.Errorf("%d tables before, %d removed, %d left: %v", before, n, count(), err)
	}
	if _, err := soak.Cleanup(t.Context(), cfg, "waybill"); !errors.Is(err, soak.ErrConfig) {
		t.Errorf("a name that is not that of a run: %v", err)
	}
}
