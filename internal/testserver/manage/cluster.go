//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// node is a server of a cluster.
type node interface {
	engine
	// whole returns nil if the running server has rejoined the cluster, and has
	// the data that it missed.
	whole(ctx context.Context, s Server) error
}

// Cluster is a set of servers that replace each other.
type Cluster struct {
	in    *Instance
	nodes []node
	// Servers are the nodes, by number.
	Servers []Server
}

// runCluster starts an instance with nothing but the nodes.
func (h *Home) runCluster(ctx context.Context, nodes []node) (*Cluster, error) {
	in, err := h.newInstance(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{in: in, nodes: nodes}
	engines := make([]engine, len(nodes))
	for i, n := range nodes {
		engines[i] = n
	}
	if err = in.start(ctx, engines); err == nil {
		c.Servers = in.Servers
		err = c.Whole(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// Stop ends the servers and removes their data.
func (c *Cluster) Stop(ctx context.Context) error { return c.in.Stop(ctx) }

// Restart starts a killed server on its ports and data.
func (c *Cluster) Restart(ctx context.Context, i int) error {
	acct, err := accountOf(c.Servers[i].User)
	if err != nil {
		return err
	}
	return c.Servers[i].restart(ctx, c.nodes[i], acct)
}

// Whole waits until every node serves and has its data.
func (c *Cluster) Whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("the cluster is not whole within %v", startPatience))
	defer cancel()
	for i, n := range c.nodes {
		for {
			err := n.whole(ctx, c.Servers[i])
			if err == nil {
				break
			}
			pause(ctx, 50*time.Millisecond)
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %s: %w", context.Cause(ctx), c.Servers[i].Name, err)
			}
		}
	}
	return nil
}
