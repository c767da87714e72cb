package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestJudge(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		text string
		err  error
		want string
	}{
		{"--- FAIL: TestOrder (0.10s)\nFAIL", failed, "killed"},
		{"panic: test timed out after 3m0s", failed, "killed"},
		{"--- PASS: TestOrder (0.10s)\nPASS", nil, "SURVIVED"},
		{"--- PASS: TestRelay (0.00s)\n    --- SKIP: TestRelay/order (0.00s)\nPASS", nil, "skipped"},
		{"    --- SKIP: TestRelay/mysql (0.00s)\n    --- FAIL: TestRelay/postgres (0.00s)\nFAIL", failed, "killed"},
		{"testing: warning: no tests to run\nPASS", nil, "no test"},
		{"./relay.go:12:3: undefined: x\nFAIL\t[build failed]", failed, "no build"},
	} {
		if got := judge(c.text, c.err); got != c.want {
			t.Errorf("%q: got %s, want %s", c.text, got, c.want)
		}
	}
}

// TestKilledIn: only mutants that an earlier run killed are left out.
func TestKilledIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	text := "killed      1.2s  relay: a (x) b (relay.mutants:3)\nSURVIVED    0.1s  relay: c (relay.mutants:9)\n--- PASS\n2 mutants: 1 SURVIVED 1 killed\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := killedIn(file)
	if err != nil || len(got) != 2 || !got["relay: a (x) b"] || got["relay: c"] {
		t.Errorf("got %v, %v", got, err)
	}
}
