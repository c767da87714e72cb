package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
)

// watchCluster makes a cluster's client ask for the nodes of all slots again
// after an error. By itself the client does so when a node names another; a
// node that is dead or hangs names none.
func watchCluster(client redis.UniversalClient) {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.AddHook(reloader{cluster})
	}
}

// reloader implements redis.Hook.
type reloader struct{ cluster *redis.ClusterClient }

func (r reloader) seen(ctx context.Context, err error) error {
	if err != nil && !errors.Is(err, redis.Nil) {
		r.cluster.ReloadState(ctx)
	}
	return err
}

// DialHook implements redis.Hook.
func (reloader) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

// ProcessHook implements redis.Hook.
func (r reloader) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return r.seen(ctx, next(ctx, cmd)) }
}

// ProcessPipelineHook implements redis.Hook.
func (r reloader) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return r.seen(ctx, next(ctx, cmds)) }
}

// reachable returns an error if the server does not answer. A cluster has to
// name its nodes; one of them may be down.
func reachable(ctx context.Context, client redis.UniversalClient) error {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		_, err := cluster.MasterForKey(ctx, fieldPublishID)
		return err
	}
	return client.Ping(ctx).Err()
}

// primary returns the client whose pipelines execute the commands of a stream
// on one connection, in their order. A cluster's own pipeline distributes its
// commands, and WAIT applies to the connection that has written.
func (b *Broker) primary(ctx context.Context, stream string) (redis.UniversalClient, error) {
	cluster, ok := b.client.(*redis.ClusterClient)
	if !ok {
		return b.client, nil
	}
	return cluster.MasterForKey(ctx, stream)
}

// pipes are the pipelines of a wave, one for each primary.
type pipes struct {
	b    *Broker
	list map[redis.UniversalClient]*pipe
}

// pipe is a pipeline, and its results once it is executed.
type pipe struct {
	redis.Pipeliner
	received *redis.Cmd // the answer of WAIT
	failed   error
}

// of returns the pipeline for a stream.
func (p *pipes) of(ctx context.Context, stream string) (*pipe, error) {
	client, err := p.b.primary(ctx, stream)
	if err != nil {
		return nil, waybill.Unavailable(fmt.Errorf("redisbroker: primary of stream %s: %w", stream, err))
	}
	if p.list[client] == nil {
		p.list[client] = &pipe{Pipeliner: client.Pipeline()}
	}
	return p.list[client], nil
}

// exec executes all pipelines. A primary that hangs does not delay the others'
// events.
func (p *pipes) exec(ctx context.Context, replicas int) {
	var all sync.WaitGroup
	for _, one := range p.list {
		if replicas > 0 {
			one.received = one.Do(ctx, "WAIT", replicas, replicaPatience.Milliseconds())
		}
		all.Go(func() {
			_, one.failed = one.Exec(ctx)
			if cluster, ok := p.b.client.(*redis.ClusterClient); ok {
				_ = reloader{cluster}.seen(ctx, one.failed) // the commands have their errors
			}
		})
	}
	all.Wait()
}

// sameSlot returns an error if a cluster has the streams of a source at
// different nodes: a read has one node.
func (s *Source) sameSlot(ctx context.Context) error {
	cluster, ok := s.b.client.(*redis.ClusterClient)
	if !ok || len(s.cfg.Streams) < 2 {
		return nil
	}
	first, other := int64(-1), ""
	for _, stream := range s.cfg.Streams {
		slot, err := cluster.ClusterKeySlot(ctx, stream).Result()
		switch {
		case err != nil:
			return s.b.hide(fmt.Errorf("redisbroker: slot of stream %s: %w", stream, err))
		case first < 0:
			first = slot
		case slot != first:
			other = stream
		}
	}
	if other != "" {
		return waybill.Permanent(fmt.Errorf("redisbroker: streams %s and %s have different hash slots: "+
			"use a source for each, or names with the same part in braces", s.cfg.Streams[0], other))
	}
	return nil
}
