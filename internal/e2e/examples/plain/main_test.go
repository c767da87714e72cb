package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// told is the output of the program, on every store.
const told = `Order A-1 was committed.
Delivered: OrderPlaced of order A-1, total 9990.
Order A-2 was rolled back: nothing was ordered.
Order A-3 was committed.
Delivered: OrderPlaced of order A-3, total 20.
`

func TestPlain(t *testing.T) {
	if got := goRun(t, "."); got != told {
		t.Errorf("it says:\n%s", got)
	}
}

// goRun runs the program in a folder, as a reader of the documentation would,
// and returns its output.
func goRun(t *testing.T, folder string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", folder, err, errs.Bytes())
	}
	return out.String()
}
