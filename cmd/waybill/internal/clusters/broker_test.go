//go:build unix

package clusters_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// brokers is a cluster of brokers beside a database that does not fail.
type brokers struct {
	*manage.Cluster
	database string
	// leader returns the name of the server that the next failure hits.
	leader func(ctx context.Context, n int) (string, error)
	// publish returns when a new client has published something.
	publish func(ctx context.Context) error
	// frozen: the leader hangs and continues beside its successor. Otherwise it
	// is killed.
	frozen bool
	// fault replaces the kill of a server, and rejoin its restart, if they are
	// not nil.
	fault, rejoin func(ctx context.Context, i int) error
}

// runBrokers soaks on a cluster of brokers while its leaders fail.
func runBrokers(t *testing.T, b *brokers, sink string, allowed ...soak.Promise) {
	t.Helper()
	b.database = private.Start(t, testserver.PostgresName).DSN
	run(t, b, b.database, sink, allowed...)
}

func (b *brokers) fail(ctx context.Context, n int, served func(ctx context.Context) error) error {
	name, err := b.leader(ctx, n)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(b.Servers, func(s manage.Server) bool { return s.Name == name })
	if i < 0 {
		return fmt.Errorf("no server is called %q", name)
	}
	fault, rejoin := b.Servers[i].Kill, func(ctx context.Context) error { return b.Restart(ctx, i) }
	if b.frozen {
		fault, rejoin = b.Servers[i].Freeze, b.Servers[i].Thaw
	}
	if b.fault != nil {
		fault = func(ctx context.Context) error { return b.fault(ctx, i) }
	}
	if b.rejoin != nil {
		rejoin = func(ctx context.Context) error { return b.rejoin(ctx, i) }
	}
	if err := fault(ctx); err != nil {
		return err
	}
	if err := served(ctx); err != nil {
		return err
	}
	// The others do the work for a while.
	if err := arrive(ctx, b); err != nil {
		return err
	}
	if err := rejoin(ctx); err != nil {
		return err
	}
	return b.Whole(ctx)
}

func (b *brokers) served(ctx context.Context) error {
	return until(ctx, func(ctx context.Context) bool { return b.publish(ctx) == nil })
}

func (b *brokers) progress(ctx context.Context) (int, error) { return effects(ctx, b.database) }
