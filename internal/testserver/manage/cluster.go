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

// runCluster starts an instance with nothing but the servers of a cluster. A
// stage returns the servers that start together, and begins when the servers of
// the stage before serve.
func (h *Home) runCluster(ctx context.Context, stages ...func(in *Instance) []engine) (*Cluster, error) {
	in, err := h.newInstance(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{in: in}
	for _, stage := range stages {
		if err = c.add(ctx, stage(in)); err != nil {
			break
		}
	}
	if err == nil {
		err = c.Whole(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// add starts servers, and adds those that are nodes.
func (c *Cluster) add(ctx context.Context, engines []engine) error {
	if err := c.in.start(ctx, engines); err != nil {
		return err
	}
	started := c.in.Servers[len(c.in.Servers)-len(engines):]
	for i, e := range engines {
		if n, ok := e.(node); ok {
			c.nodes = append(c.nodes, n)
			c.Servers = append(c.Servers, started[i])
		}
	}
	return nil
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
