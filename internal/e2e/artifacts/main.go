// Artifacts builds the files of a release of the program: an archive, a bill of
// materials and, for Linux, a container image per platform, with checksums.
// Builds of one commit by one Go version are identical, in any folder.
//
//	make artifacts VERSION=v0.1.0
//	go run ./internal/e2e/artifacts -only host
//
// docs/deploy.md describes the files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// platforms are those of a release.
var platforms = []platform{
	{"darwin", "amd64"},
	{"darwin", "arm64"},
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"windows", "amd64"},
	{"windows", "arm64"},
}

// A platform is what a binary is built for.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// binary returns the name of the program's file.
func (p platform) binary() string {
	if p.os == "windows" {
		return "waybill.exe"
	}
	return "waybill"
}

const usage = `usage, in the repository: artifacts [flags]

Builds the archives, container images, bills of materials and checksums of a
release, into a folder. All platforms take about 15 minutes on two cores with
empty caches, and one platform takes 4.

`

// options are the flags.
type options struct {
	root, out       string
	version, commit string
	platforms       []platform
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "artifacts:", err)
		os.Exit(1)
	}
}

// run is the program. Progress and usage are written to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	return release(ctx, o, out)
}

// release builds the files.
func release(ctx context.Context, o options, out io.Writer) error {
	s, err := readSource(ctx, o)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if err := clean(o.out); err != nil {
		return err
	}
	for i, p := range o.platforms {
		fmt.Fprintf(out, "%s for %s, %d of %d\n", s.version, p, i+1, len(o.platforms))
		files, err := s.produce(ctx, p, o.out)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "  %5.1f MB  %s\n", float64(info.Size())/1e6, filepath.Base(file))
		}
	}
	if err := writeSums(o.out); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s with checksums in %s, after %s\n", sumsFile, o.out, time.Since(began).Round(time.Second))
	return nil
}

// parse reads the flags.
func parse(args []string, out io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("artifacts", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.version, "version", "", "`version` of the release, as in v0.1.0; default: the tag of HEAD, or a pseudo-version of its commit")
	flags.StringVar(&o.commit, "commit", "", "full `hash` of the commit; default: HEAD")
	flags.StringVar(&o.out, "out", "dist", "`folder` of the files; earlier files of this program in it are removed")
	only := flags.String("only", "", "`platforms` to build, separated by commas, as in linux/arm64; host stands for this machine's")
	flags.Usage = func() {
		fmt.Fprint(out, usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; see -help", flags.Arg(0))
	}
	var err error
	if o.platforms, err = choose(*only); err != nil {
		return o, err
	}
	o.root, err = findRoot()
	return o, err
}

// choose returns the platforms that a flag names.
func choose(only string) ([]platform, error) {
	if only == "" {
		return platforms, nil
	}
	var chosen []platform
	for name := range strings.SplitSeq(only, ",") {
		if name == "host" {
			name = runtime.GOOS + "/" + runtime.GOARCH
		}
		found := false
		for _, p := range platforms {
			if p.String() == name {
				chosen, found = append(chosen, p), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no release is built for %q; the platforms are %v", name, platforms)
		}
	}
	return chosen, nil
}

// findRoot returns the root folder of the repository that the current folder
// belongs to.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, program, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("this folder is not in the repository: no cmd/waybill here or above")
		}
		dir = parent
	}
}
