// Release prepares the tags of all modules, and runs what needs the modules of
// this repository without the workspace.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"

	"github.com/waybillhq/waybill/internal/release"
)

const usage = `usage, in the root folder of the repository:
  release check                  check the go.mod files, go.work and the lists
  release tidy                   go mod tidy in every module
  release go FOLDER COMMAND...   run a command in a module, without the workspace
  release tag VERSION            make the release commit and its tags
  release proxy VERSION FOLDER   write the modules as a module proxy serves them
  release apidiff TOOL [BASE]    compare the API with BASE or the last tag
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && os.Args[1] == "go" {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	repo, err := release.Open(ctx, ".")
	if err != nil {
		return err
	}
	switch {
	case len(args) == 1 && args[0] == "check":
		return repo.Check(ctx)
	case len(args) == 1 && args[0] == "tidy":
		return repo.Tidy(ctx, out)
	case len(args) > 2 && args[0] == "go":
		return repo.Go(ctx, args[1], out, os.Stderr, args[2:]...)
	case len(args) == 2 && args[0] == "tag":
		return repo.Tag(ctx, args[1], out)
	case len(args) == 3 && args[0] == "proxy":
		return repo.Proxy(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == "apidiff":
		return repo.APIDiff(ctx, args[1], "", out)
	case len(args) == 3 && args[0] == "apidiff":
		return repo.APIDiff(ctx, args[1], args[2], out)
	}
	fmt.Fprint(os.Stderr, usage)
	return errors.New("unknown command or wrong number of arguments")
}
