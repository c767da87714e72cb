package sqlitestore_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// The test binary is also the program under test: with the environment variable
// child set, it opens a file, does one task, and reports on standard output,
// line by line, what it has done.

// Environment variables of a child.
const (
	childFile = child + "_FILE"
	childName = child + "_NAME"
)

// tasks are the tasks of children. A task that returns an error ends its
// process with that error.
var tasks = map[string]func(ctx context.Context, c *childProcess) error{
	"migrate": func(ctx context.Context, c *childProcess) error {
		applied, err := c.db.Migrate(ctx)
		if err == nil {
			c.say("applied %d", len(applied))
		}
		return err
	},
	// many writes a number of transactions, of two events each.
	"many": func(ctx context.Context, c *childProcess) error {
		for i := range 50 {
			if _, err := c.write(ctx, i, nil); err != nil {
				return err
			}
		}
		return nil
	},
	// forever writes until the process is killed, and reports every commit.
	"forever": func(ctx context.Context, c *childProcess) error {
		for i := 0; ; i++ {
			id, err := c.write(ctx, i, nil)
			if err != nil {
				return err
			}
			c.say("committed %s", id)
		}
	},
	// before waits inside the transaction, with everything written.
	"before": func(ctx context.Context, c *childProcess) error {
		_, err := c.write(ctx, 0, func(id waybill.ID) {
			c.say("written %s", id)
			c.wait()
		})
		return err
	},
	// after waits right after the commit.
	"after": func(ctx context.Context, c *childProcess) error {
		id, err := c.write(ctx, 0, nil)
		if err == nil {
			c.say("committed %s", id)
			c.wait()
		}
		return err
	},
	// full writes until its files may not grow any more, and reports the result
	// of each transaction.
	"full": func(ctx context.Context, c *childProcess) error {
		if err := limitFiles(400 << 10); err != nil {
			return err
		}
		for i, failed := 0, 0; failed < 20; i++ {
			id, err := c.write(ctx, i, nil)
			switch {
			case err == nil:
				c.say("committed %s", id)
			case errors.Is(err, waybill.ErrUncertain):
				failed++
				c.say("uncertain %s", id)
			default:
				failed++
				c.say("failed %s", id)
			}
		}
		return nil
	},
}

// childProcess is a child, seen from its own process.
type childProcess struct {
	name string
	db   *sqlitestore.Store
	box  *outbox.Outbox[*sql.Tx]
}

func (c *childProcess) say(format string, args ...any) {
	if _, err := fmt.Fprintf(os.Stdout, format+"\n", args...); err != nil {
		os.Exit(1) // the parent has closed the pipe
	}
}

// wait waits for the end of standard input.
func (c *childProcess) wait() { _, _ = io.Copy(io.Discard, os.Stdin) }

// write commits a business row and two events; inside is called before the
// commit.
func (c *childProcess) write(ctx context.Context, i int, inside func(waybill.ID)) (waybill.ID, error) {
	id := waybill.NewID()
	err := c.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO business (note) VALUES (?)`, id.String()); err != nil {
			return err
		}
		ev := waybill.Event{ID: id, Type: "Counted", AggregateType: "child", AggregateID: c.name, Payload: fmt.Append(nil, 2*i)}
		second := ev
		second.ID, second.Payload = waybill.NewID(), fmt.Append(nil, 2*i+1)
		if err := c.box.Write(ctx, tx, ev, second); err != nil {
			return err
		}
		if inside != nil {
			inside(id)
		}
		return nil
	})
	return id, err
}

// runChild is the main function of a child.
func runChild(task string) int {
	db, err := sqlitestore.Open(os.Getenv(childFile), sqlitestore.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	box, err := outbox.New(db, outbox.Config{})
	if err == nil {
		err = tasks[task](context.Background(), &childProcess{name: os.Getenv(childName), db: db, box: box})
	}
	if err = errors.Join(err, db.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a child, seen from the parent.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.Closer
}

// start starts a child. The child is killed at the end of the test at the
// latest.
func start(t *testing.T, path, task, name string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0]) //nolint:noctx // tests kill it when they want to
	cmd.Env = append(os.Environ(), child+"="+task, childFile+"="+path, childName+"="+name)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, lines: bufio.NewScanner(stdout), stdin: stdin}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return p
}

// line returns the next line of the child's output.
func (p *process) line(t *testing.T) (word, rest string) {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the child has ended: %v", p.lines.Err())
	}
	word, rest, _ = strings.Cut(p.lines.Text(), " ")
	return word, rest
}

// kill kills the child and returns its output up to then.
func (p *process) kill(t *testing.T) []string {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest := p.rest()
	_ = p.cmd.Wait()
	return rest
}

// end lets the child finish and returns its output.
func (p *process) end(t *testing.T) []string {
	t.Helper()
	_ = p.stdin.Close()
	rest := p.rest()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("child: %v", err)
	}
	return rest
}

func (p *process) rest() []string {
	var lines []string
	for p.lines.Scan() {
		lines = append(lines, p.lines.Text())
	}
	return lines
}
