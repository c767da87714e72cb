package main

import (
	"errors"
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
