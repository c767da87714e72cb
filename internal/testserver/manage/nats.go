//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// natsNode is a node of a cluster of NATS servers with JetStream. The server is
// built from the module that package natsembed uses: no package of the system
// has it.
type natsNode struct {
	number int
	routes []int // the ports at which all nodes listen for each other
	via    Via   // nil: the nodes connect to each other
}

// Via returns the port at which a node reaches a port of another: that port, or
// one of a proxy. The numbers of nodes begin with 1.
type Via func(from, to, port int) int

func (n natsNode) name() string         { return fmt.Sprintf("nats-%d", n.number) }
func (natsNode) env() string            { return "" }
func (natsNode) account() string        { return "" }
func (natsNode) programs() []program    { return nil }
func (natsNode) dsn(port int) string    { return fmt.Sprintf("nats://127.0.0.1:%d", port) }
func (natsNode) recipe(d string) []step { return emptyFolder(d) }

// ports: clients, and the monitor.
func (natsNode) ports() int { return 2 }

const natsModule = "github.com/nats-io/nats-server/v2"

var natsVersion = regexp.MustCompile(regexp.QuoteMeta(natsModule) + ` v(\S+)`)

// module returns the folder of the module that requires the server.
func (natsNode) module() (string, error) {
	root, err := repoRoot(".")
	return filepath.Join(root, "broker", "natsembed"), err
}

func (n natsNode) version(context.Context) (string, error) {
	dir, err := n.module()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	found := natsVersion.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s does not require %s", dir, natsModule)
	}
	return string(found[1]), nil
}

// program returns the path of the server, in the user's cache folder.
func (n natsNode) program(version string) string {
	return filepath.Join(cacheDir(), "nats-server-"+version, "nats-server")
}

// fetch builds the server unless it is present. It is built under another name
// and moved when complete.
func (n natsNode) fetch(ctx context.Context, h *Home) error {
	version, err := n.version(ctx)
	if err != nil {
		return err
	}
	to := n.program(version)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	lock, err := lockFile(ctx, to+".lock")
	if err != nil {
		return err
	}
	defer lock.unlock()
	if fileExists(to) {
		return nil
	}
	h.say("building nats-server %s, once ...", version)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to+".new", natsModule)
	if cmd.Dir, err = n.module(); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w:\n%s", err, tail(string(out), 12))
	}
	return os.Rename(to+".new", to)
}

func (n natsNode) start(at place, ports []int) command {
	version, _ := n.version(context.Background()) // startEngine has read it
	config := filepath.Join(at.dir, "nats.conf")
	var routes []string
	settings := ""
	for i, port := range n.routes {
		if n.via != nil && i+1 != n.number {
			port = n.via(n.number, i+1, port)
			// No node and no client tells others a way around the proxies.
			settings = `, no_advertise: true, advertise: "127.0.0.1:1"`
		}
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	return command{
		argv: []string{n.program(version), "--config", config},
		files: map[string]string{config: fmt.Sprintf("server_name: %s\nlisten: 127.0.0.1:%d\nhttp: 127.0.0.1:%d\njetstream { store_dir: %q }\n"+
			"cluster { name: waybill, listen: 127.0.0.1:%d, routes: [%s]%s }\n",
			n.name(), ports[0], ports[1], at.data, n.routes[n.number-1], strings.Join(routes, ", "), settings)},
	}
}

// ready: the node accepts clients. JetStream needs a majority of the nodes.
func (natsNode) ready(_ context.Context, r running) bool {
	return strings.Contains(r.log, "Server is ready")
}

func (natsNode) portTaken(log string) bool { return strings.Contains(log, "address already in use") }

// whole implements [node]: the node has all data that it must have.
func (natsNode) whole(ctx context.Context, s Server) error {
	return probeHTTP(ctx, s.Ports[1], "/healthz")
}

// RunNATS starts a cluster of n NATS servers with JetStream, which reach each
// other via proxies if via is not nil.
func (h *Home) RunNATS(ctx context.Context, n int, via Via) (*Cluster, error) {
	if err := (natsNode{}).fetch(ctx, h); err != nil {
		return nil, err
	}
	routes, err := freePorts(ctx, n)
	if err != nil {
		return nil, err
	}
	return h.runCluster(ctx, func(*Instance) []engine {
		var nodes []engine
		for i := range n {
			nodes = append(nodes, natsNode{number: i + 1, routes: routes, via: via})
		}
		return nodes
	})
}
