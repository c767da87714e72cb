//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

type redis struct{}

func (redis) name() string    { return testserver.RedisName }
func (redis) env() string     { return testserver.EnvRedis }
func (redis) account() string { return "redis" }
func (redis) ports() int      { return 1 }

func (redis) programs() []program {
	return []program{
		{names: []string{"redis-server"}, packages: []string{"redis-server"}},
		{names: []string{"redis-cli"}, packages: []string{"redis-tools"}, optional: true},
	}
}

func (r redis) server() string {
	path, _ := r.programs()[0].find()
	return path
}

var redisVersion = regexp.MustCompile(`v=(\S+)`)

func (r redis) version(ctx context.Context) (string, error) {
	line, err := versionOutput(ctx, r.server())
	if err != nil {
		return "", err
	}
	found := redisVersion.FindStringSubmatch(line)
	if found == nil {
		return "", fmt.Errorf("%s --version printed %q", r.server(), line)
	}
	return found[1], nil
}

func (redis) recipe(data string) []step { return emptyFolder(data) }

// emptyFolder is the recipe of a server that fills its folder by itself.
func emptyFolder(data string) []step { return []step{{argv: []string{"mkdir", data}}} }

func (r redis) start(at place, ports []int) command {
	return command{argv: []string{
		r.server(),
		"--bind", "127.0.0.1",
		"--port", strconv.Itoa(ports[0]),
		"--dir", at.data,
		"--daemonize", "no",
		// the title would hide the folder, which identifies the process
		"--set-proc-title", "no",
		"--appendonly", "yes",
		"--appendfsync", "always", // acknowledged writes survive a crash
		"--save", "",
		"--maxmemory-policy", "noeviction",
	}}
}

// ready checks the process id of the answer: another program may answer on the
// port.
func (redis) ready(ctx context.Context, r running) bool {
	pid, err := probeRedis(ctx, r.ports[0])
	return err == nil && pid == r.pid
}

func (redis) portTaken(log string) bool { return strings.Contains(log, "Address already in use") }

func (redis) dsn(port int) string { return fmt.Sprintf("redis://127.0.0.1:%d/0", port) }
