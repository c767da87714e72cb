package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
)

// TestMain runs the program itself if a command started this binary as a relay.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "relay" {
		main()
	}
	os.Exit(m.Run())
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "usage: bench COMMAND"},
		{[]string{"-h"}, 0, "usage: bench COMMAND"},
		{[]string{"--help"}, 0, "usage: bench COMMAND"},
		{[]string{"-rounds", "3"}, 2, "usage: bench COMMAND"},
		{[]string{"fly"}, 2, `unknown command "fly"`},
		{[]string{"drain", "-h"}, 0, "-held-snapshot"},
		{[]string{"steady", "-h"}, 0, "-rate"},
		{[]string{"idle", "-h"}, 0, "-turn"},
		{[]string{"write", "-h"}, 0, "-rounds"},
		{[]string{"brokers", "-h"}, 0, "-only"},
		{[]string{"apart", "-h"}, 0, "-rates"},
		{[]string{"apart", "-rates", "0"}, 2, "-rates 0: use numbers from 1 to 40000"},
		{[]string{"apart", "-rounds", "0"}, 2, "-rounds and -turn are positive"},
		{[]string{"conditions", "-h"}, 0, "-events"},
		{[]string{"conditions", "-rate", "0"}, 2, "-rate 0: use 1 to 40000"},
		{[]string{"conditions", "-events", "none"}, 2, `"none" is not a size`},
		{[]string{"destinations", "-h"}, 0, "-rounds"},
		{[]string{"destinations", "-rates", "500,many"}, 2, "-rates 500,many: use numbers from 1 to 40000"},
		{[]string{"destinations", "-rounds", "0"}, 2, "-rounds and -turn are positive"},
		{[]string{"tenants", "-flood", "some"}, 2, `"some" is not a size`},
		{[]string{"outboxes", "-counts", "1,x"}, 2, `"x" is not a size`},
		{[]string{"outboxes", "-idle", "0s"}, 2, "-idle and -turn are positive"},
		{[]string{"tenants", "-rate", "0"}, 2, "-rate 0: use 1 to 40000"},
		{[]string{"brokers", "-only", "pigeon"}, 2, `unknown broker "pigeon"`},
		{[]string{"idempotency", "-mix", "5,100"}, 2, `-mix: "100" is not a percentage`},
		{[]string{"idempotency", "-mix", "few"}, 2, `-mix: "few" is not a percentage`},
		{[]string{"dashboard", "-h"}, 0, "-history"},
		{[]string{"dashboard", "-dead", "many"}, 2, `"many" is not a size`},
		{[]string{"dashboard", "-rounds", "0"}, 2, "-rounds 0: use 1 or more"},
		{[]string{"drain", "-nonsense"}, 2, "-nonsense"},
		{[]string{"drain", "100k"}, 2, `"100k" is not a flag`},
		{[]string{"drain", "-db", "oracle"}, 2, `unknown database "oracle"`},
		{[]string{"drain", "-db", "mysql,sqlite"}, 2, "one at a time"},
		{[]string{"drain", "-db", "sqlite", "-sizes", "many"}, 1, `"many" is not a size`},
		{[]string{"drain", "-db", "sqlite", "-only", "none"}, 1, "leave no contender"},
		{[]string{"drain", "-db", "sqlite", "-blocked"}, 1, "measured on postgres"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), tc.args, &out, &errs); code != tc.code || !strings.Contains(errs.String(), tc.says) {
			t.Errorf("bench %v: exit %d, want %d with %q:\n%s", tc.args, code, tc.code, tc.says, errs.String())
		}
	}
}

// TestOnPostgres runs every command for PostgreSQL once, as short as it can be.
func TestOnPostgres(t *testing.T) {
	testserver.Postgres(t)
	for name, args := range map[string][]string{
		"by hand, no relay": {"steady", "-peers=false", "-rounds", "1", "-turn", "100ms", "-rate", "500"},
		"statements/s":      {"idle", "-warm", "100ms", "-turn", "200ms"},
		"the best peer":     {"apart", "-db", "postgres,sqlite", "-rates", "200", "-rounds", "1", "-turn", "100ms"},
		"blocked aggregates": {
			"conditions", "-events", "500", "-rate", "200", "-warm", "100ms", "-idle", "100ms", "-turn", "200ms",
		},
		"2, one unavailable":         {"destinations", "-events", "500", "-rounds", "1", "-rates", "200", "-turn", "100ms"},
		"memory  connections":        {"outboxes", "-counts", "1,3", "-events", "300", "-rate", "200", "-warm", "0s", "-idle", "50ms", "-turn", "100ms"},
		"a flood waits at the start": {"tenants", "-flood", "2k", "-rounds", "1", "-rate", "50", "-turn", "200ms"},
		"mix, 30 % repeats":          {"idempotency", "-rounds", "1", "-turn", "50ms", "-answers", "100", "-only", "mix", "-mix", "30"},
		"dead letters by cause":      {"dashboard", "-history", "2k", "-dead", "1k", "-rounds", "1"},
		handBatch:                    {"inbox", "-rounds", "1", "-turn", "50ms", "-records", ""},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != 0 || !strings.Contains(out.String(), name) {
			t.Errorf("bench %v: exit %d, want 0 with %q:\n%s%s", args, code, name, out.String(), errs.String())
		}
	}
}

// TestDrainSQLite runs a complete drain once, on the only database that needs
// no server.
func TestDrainSQLite(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"drain", "-db", "sqlite", "-sizes", "2k", "-rounds", "1", "-svg", dir}, &out, &errs)
	if code != 0 {
		t.Fatalf("exit %d:\n%s", code, errs.String())
	}
	for _, want := range []string{floorName, "waybill, tuned", dropped, kept} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "more than once") || strings.Contains(out.String(), "after a later one") {
		t.Errorf("events came twice, or out of order:\n%s", out.String())
	}
}

func TestFileName(t *testing.T) {
	if got, want := fileName("drain-postgres, 100k events, 1ms sink"), "drain-postgres-100k-events-1ms-sink"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestChoose(t *testing.T) {
	text := func(s string) *string { return &s }
	more, fewer := true, false
	all := []drainer{
		{name: floorName, group: dropped, yardstick: true},
		{name: "waybill", group: dropped, role: roleOwn},
		{name: "oagudo, tuned", group: dropped, role: rolePeer},
		{name: floorName, group: kept, yardstick: true},
		{name: "waybill", group: kept, role: roleOwn},
		{name: "river, tuned", group: kept, role: rolePeer},
		{name: "floor, 1000 a batch", group: dropped, role: roleFloor},
	}
	for _, tc := range []struct {
		only, history string
		floors        *bool
		want          []int
	}{
		{"", "off,on", &fewer, []int{0, 1, 2, 3, 4, 5}},
		{"", "off", &more, []int{0, 1, 2, 6}},
		{"river", "off,on", &more, []int{3, 5}},
		{"waybill,oagudo", "off", &fewer, []int{0, 1, 2}},
		{"none", "off,on", &more, nil},
	} {
		got := drainFlags{only: text(tc.only), history: text(tc.history), floors: tc.floors}.choose(all)
		var want []string
		for _, i := range tc.want {
			want = append(want, all[i].name+all[i].group)
		}
		if !slices.EqualFunc(got, want, func(d drainer, w string) bool { return d.name+d.group == w }) {
			t.Errorf("-only %q -history %q: %d contenders, want %v", tc.only, tc.history, len(got), want)
		}
	}
}

func TestShorten(t *testing.T) {
	if got := shorten("SELECT\n  1"); got != "SELECT 1" {
		t.Errorf("got %q", got)
	}
	long := shorten("SELECT " + strings.Repeat("column, ", 100) + " FROM t")
	if len([]rune(long)) > 170 || !strings.HasPrefix(long, "SELECT") || !strings.HasSuffix(long, "FROM t") {
		t.Errorf("got %q", long)
	}
}

func TestStatementCounterLists(t *testing.T) {
	var c statementCounter
	c.note("SELECT 1", time.Millisecond)
	c.note("SELECT 2", time.Second)
	c.note("SELECT 1", time.Millisecond)
	var out bytes.Buffer
	c.write(&out, 1)
	if text := out.String(); !strings.Contains(text, "SELECT 2") || strings.Contains(text, "SELECT 1") {
		t.Errorf("the most expensive one is missing, or not alone:\n%s", text)
	}
	c.forget()
	out.Reset()
	c.write(&out, 0)
	if strings.Contains(out.String(), "SELECT") {
		t.Errorf("it remembers:\n%s", out.String())
	}
}
