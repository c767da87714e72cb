//go:build linux || darwin

package server

import (
	"context"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// Postgres is a running server.
type Postgres struct {
	manage.Server
}

// Start starts a server that ends with the test. The test is skipped, or fails,
// as with [testserver.Postgres].
func Start(t *testing.T) *Postgres {
	t.Helper()
	return &Postgres{private.Start(t, testserver.PostgresName)}
}

// Crash ends the server at once, without a checkpoint, as pg_ctl stop -m
// immediate does: unwritten data is lost.
func (p *Postgres) Crash(ctx context.Context) error { return p.Kill(ctx) }
