//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// rabbitmq is a node with a port mapper (epmd) of its own: a shared one would
// outlive the node, and other nodes of the same name would have to find it.
type rabbitmq struct{}

func (rabbitmq) name() string    { return testserver.RabbitMQName }
func (rabbitmq) env() string     { return testserver.EnvRabbitMQ }
func (rabbitmq) account() string { return "rabbitmq" }

// ports: AMQP, the node's port for other nodes, and the port mapper.
func (rabbitmq) ports() int { return 3 }

func (rabbitmq) programs() []program {
	return []program{
		{names: []string{"rabbitmq-server"}, packages: []string{"rabbitmq-server"}},
		{names: []string{"epmd"}, packages: []string{"erlang-base"}},
	}
}

// server returns the script itself. On Debian the one on PATH is a wrapper that
// requires root and the system's own folders.
func (r rabbitmq) server() string {
	path, _ := r.programs()[0].find()
	if target, err := filepath.EvalSymlinks(path); err == nil {
		if script := filepath.Join(filepath.Dir(target), "rabbitmq-server"); fileExists(script) {
			return script
		}
	}
	return path
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var rabbitmqVersion = regexp.MustCompile(`rabbitmq_server-([0-9.]+)`)

// version reads the name of the server's folder: querying the server would
// start an Erlang machine.
func (r rabbitmq) version(context.Context) (string, error) {
	target, err := filepath.EvalSymlinks(r.server())
	if err != nil {
		return "", err
	}
	if found := rabbitmqVersion.FindStringSubmatch(target); found != nil {
		return found[1], nil
	}
	return "unknown", nil
}

func (rabbitmq) recipe(data string) []step { return emptyFolder(data) }

func (r rabbitmq) start(at place, ports []int) command {
	mapper, _ := r.programs()[1].find()
	config := filepath.Join(at.dir, "rabbitmq.conf")
	plugins := filepath.Join(at.dir, "enabled_plugins")
	// The port mapper runs in the data folder, which identifies it as this
	// program's; one that the node starts by itself runs in /. It may still run
	// after the node was killed, and then a second one ends at once.
	const script = `"$1" -port "$2" -address 127.0.0.1 & exec "$3"`
	return command{
		argv:    []string{"/bin/sh", "-c", script, "sh", mapper, strconv.Itoa(ports[2]), r.server()},
		environ: r.environ(at, "waybill", ports[1], ports[2]),
		files: map[string]string{
			config:  fmt.Sprintf(rabbitConfig, ports[0]),
			plugins: "[].\n",
		},
	}
}

// rabbitConfig is the configuration of a node with its port.
const rabbitConfig = "listeners.tcp.1 = 127.0.0.1:%d\nlog.console = true\nlog.console.level = info\nlog.file = false\n"

// environ returns the variables of a node, with its port for other nodes and
// that of its port mapper.
func (rabbitmq) environ(at place, node string, port, mapper int) []string {
	return []string{
		"HOME=" + at.dir, // where the node creates its cookie
		"RABBITMQ_NODENAME=" + node + "@localhost",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(port),
		"ERL_EPMD_PORT=" + strconv.Itoa(mapper),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		// not the settings of the system's server
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(at.dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(at.dir, "advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(at.dir, "enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + at.data,
		"RABBITMQ_GENERATED_CONFIG_DIR=" + filepath.Join(at.data, "config"),
		"RABBITMQ_LOG_BASE=" + at.data,
		"RABBITMQ_LOGS=-",
		// no shell between this program and the server
		"RUNNING_UNDER_SYSTEMD=1",
	}
}

// ready also requires the log line: another program may answer on the port.
func (rabbitmq) ready(ctx context.Context, r running) bool {
	return strings.Contains(r.log, "Server startup complete") && probeAMQP(ctx, r.ports[0]) == nil
}

func (rabbitmq) portTaken(log string) bool {
	return strings.Contains(log, "eaddrinuse") || strings.Contains(log, "already in use")
}

func (rabbitmq) dsn(port int) string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port) }
