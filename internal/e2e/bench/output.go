package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
)

// output holds the destinations of results besides the standard output.
type output struct{ svg, cpu *string }

func defineOutput(flags *flag.FlagSet) output {
	return output{
		svg: flags.String("svg", "", "folder for plots, such as internal/e2e/bench/results; empty: none"),
		cpu: flags.String("cpuprofile", "", "file for a CPU profile of this process; its samples are labeled with the contender (go tool pprof -tagfocus waybill)"),
	}
}

// profile starts the requested profile.
func (o output) profile() (stop func(), err error) {
	if *o.cpu == "" {
		return func() {}, nil
	}
	file, err := os.Create(*o.cpu)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}

// plot draws a chart into the requested folder.
func (o output) plot(progress io.Writer, title string, c chart) error {
	if *o.svg == "" {
		return nil
	}
	if err := os.MkdirAll(*o.svg, 0o755); err != nil {
		return err
	}
	name := filepath.Join(*o.svg, fileName(title)+".svg")
	if err := os.WriteFile(name, c.svg(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(progress, "bench: wrote %s\n", name)
	return nil
}

// fileName derives a file name from a title.
func fileName(title string) string {
	dash := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}
	name := strings.Map(dash, strings.ToLower(title))
	for strings.Contains(name, "--") {
		name = strings.ReplaceAll(name, "--", "-")
	}
	return strings.Trim(name, "-")
}
