package importing_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/importing"
)

// childTable is the variable of a process that imports this table and stops in
// the middle of its third batch, for its parent to kill it.
const childTable = "WAYBILL_TEST_IMPORT_TABLE"

// childLease is the lease of the killed process.
const childLease = 200 * time.Millisecond

func TestMain(m *testing.M) {
	if table := os.Getenv(childTable); table != "" {
		if err := child(table); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child imports until the events of its third batch are written and not
// committed; then it says so, and waits.
func child(table string) error {
	ctx := context.Background()
	st, err := open(ctx, os.Environ())
	if err != nil {
		return err
	}
	batches := 0
	b := &bed{table: table}
	layout := held{Layout: b.own(), mark: func([]*importing.Row) {
		if batches++; batches == 3 {
			fmt.Println("in the middle")
			select {}
		}
	}}
	_, err = importing.Run(ctx, st, layout, importing.Options{Batch: 4, Lease: childLease, Done: importing.Mark})
	return err
}

// TestKilled: an import is killed after it wrote the events of a batch and
// before their commit. What it committed is delivered and purged from memory;
// the next import continues behind it.
func TestKilled(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(20)
		program, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.CommandContext(b.Context(), program)
		cmd.Env = append(os.Environ(), append(b.environ, childTable+"="+b.table)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || strings.TrimSpace(line) != "in the middle" {
			b.Errorf("the process says %q, %v", line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			b.Error(err)
		}
		_ = cmd.Wait()
		if b.Failed() {
			b.FailNow()
		}
		b.equal("delivered", b.deliver(), payloads(1, 8))
		waited := false
		opts := importing.Options{Batch: 5, Done: importing.Mark, Waiting: func(time.Time) { waited = true }}
		b.run(b.own(), opts, importing.Report{Waiting: 12, Imported: 12, Marked: 12})
		b.equal("delivered", b.deliver(), payloads(9, 20))
		b.run(b.own(), importing.Options{}, importing.Report{})
		b.Logf("the second import waited for the lease: %v", waited)
	})
}
