package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// The costs of processes are read from /proc. Without /proc, or with a remote
// server, the figures are omitted.

// tick is the unit of CPU times in /proc. It is 10 ms on every Linux that Go
// runs on.
const tick = 10 * time.Millisecond

// process holds the required fields of /proc/PID/stat.
type process struct {
	parent   int
	own      time.Duration // CPU time
	children time.Duration // of children that have ended
}

func readProcess(pid string) (process, error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return process{}, err
	}
	return parseStat(text)
}

// parseStat parses a line of /proc/PID/stat. The second field is a name in
// parentheses that may contain any character.
func parseStat(text []byte) (process, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return process{}, fmt.Errorf("no name in %q", text)
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 15 {
		return process{}, fmt.Errorf("%d fields in %q", len(fields), text)
	}
	var numbers [15]int64
	// ppid, utime, stime, cutime, cstime
	for _, i := range []int{1, 11, 12, 13, 14} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return process{}, err
		}
		numbers[i] = n
	}
	return process{
		parent: int(numbers[1]), own: time.Duration(numbers[11]+numbers[12]) * tick,
		children: time.Duration(numbers[13]+numbers[14]) * tick,
	}, nil
}

// treeCPU returns the CPU time of a process and all its direct children,
// including those that have ended; 0 if unknown.
func treeCPU(pid int) time.Duration {
	if pid <= 0 {
		return 0
	}
	root, err := readProcess(strconv.Itoa(pid))
	if err != nil {
		return 0
	}
	sum := root.own + root.children
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, name := range names {
		if p, err := readProcess(filepath.Base(name)); err == nil && p.parent == pid {
			sum += p.own
		}
	}
	return sum
}

// ownCPU returns the CPU time of this process; 0 if unknown.
func ownCPU() time.Duration {
	p, err := readProcess("self")
	if err != nil {
		return 0
	}
	return p.own
}

// machineCPU returns the CPU time that all processes of the machine have used;
// 0 if unknown.
func machineCPU() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	return parseMachine(string(text))
}

// parseMachine parses the first line of /proc/stat: user, nice, system, idle,
// iowait, irq, softirq, and others.
func parseMachine(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	var sum time.Duration
	for i, field := range strings.Fields(line) {
		// the name, idle, iowait; guests are part of user
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0
		}
		sum += time.Duration(n) * tick
	}
	return sum
}

// others returns the share of the machine's CPU that unrelated processes used
// between two gauges.
func others(cost gauge, took time.Duration) float64 {
	if cost.machine == 0 || cost.server == 0 || took <= 0 {
		return 0
	}
	return max(float64(cost.machine-cost.server-cost.own)/float64(took)/float64(runtime.NumCPU()), 0)
}

// forgetPeak releases memory and resets the peak.
func forgetPeak() {
	runtime.GC()
	debug.FreeOSMemory()
	// otherwise the peak is that of the whole run
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o200)
}

// peakRSS returns the peak memory of this process since forgetPeak; 0 if
// unknown.
func peakRSS() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return parseKB(string(text), "VmHWM:")
}

// parseKB returns the bytes of a line such as "VmHWM:   1234 kB".
func parseKB(text, name string) int64 {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0
		}
		return kb << 10
	}
	return 0
}

// machine describes the machine of a run.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.Join(strings.Fields(value), " ")
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, %s, Go %s", runtime.NumCPU(), model, runtime.GOOS, strings.TrimPrefix(runtime.Version(), "go"))
}

// versions returns the versions of the modules in this program, in the order of
// paths.
func versions(paths ...string) []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var out []string
	for _, path := range paths {
		for _, m := range info.Deps {
			if m.Path == path {
				name := strings.TrimPrefix(path, "github.com/")
				if m.Version != "" {
					name += " " + m.Version
				}
				out = append(out, name)
			}
		}
	}
	return out
}
