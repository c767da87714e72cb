//go:build unix

package clusters_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
	"github.com/waybillhq/waybill/internal/testproxy"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// pair is a PostgreSQL primary with a standby, and what happens to it.
type pair struct {
	*manage.PostgresPair
	// synchronous: a commit waits for the standby.
	synchronous bool
	fault       func(ctx context.Context, p *pair) error
	// proxies are those of the clients, by server. Without them clients connect
	// to the servers.
	proxies map[string]*testproxy.Proxy
}

// TestPostgresSynchronous: the primary is killed, and the synchronous standby
// takes over. Every promise is kept.
func TestPostgresSynchronous(t *testing.T) {
	failures(t)
	p := newPair(t, true, func(ctx context.Context, p *pair) error { return p.Primary.Kill(ctx) })
	run(t, p, p.URL(), "")
}

// TestPostgresStalePrimary: the primary is frozen, the synchronous standby is
// promoted, and the old primary runs on beside it for a while. Relays that have
// seen the new primary refuse the old one. Every promise is kept.
func TestPostgresStalePrimary(t *testing.T) {
	failures(t)
	p := newPair(t, true, func(ctx context.Context, p *pair) error { return p.Primary.Freeze(ctx) })
	run(t, p, p.URL(), "")
}

// TestPostgresCutOff: the primary runs on, and neither its clients nor the
// synchronous standby reach it. The standby is promoted. Then the network comes
// back, with all that it has held, and the old primary serves clients beside
// the new one. Every promise is kept.
func TestPostgresCutOff(t *testing.T) {
	failures(t)
	p := newPair(t, true, func(ctx context.Context, p *pair) error {
		p.proxies[p.Primary.Name].Freeze()
		return p.set(ctx, p.Standby.DSN, "primary_conninfo", "")
	})
	p.proxies = make(map[string]*testproxy.Proxy)
	for _, s := range []manage.Server{p.Primary, p.Standby} {
		p.proxies[s.Name] = testproxy.New(t, address(s))
	}
	run(t, p, p.clientURL(), "")
}

// clientURL returns the URL of the clients.
func (p *pair) clientURL() string {
	url := p.URL()
	for _, s := range []manage.Server{p.Primary, p.Standby} {
		if proxy := p.proxies[s.Name]; proxy != nil {
			url = strings.Replace(url, address(s), proxy.Addr(), 1)
		}
	}
	return url
}

// TestPostgresAsynchronous: the standby loses its connection, and then the
// primary is killed. What the primary had confirmed is lost, and what was
// delivered of it did not happen; docs/clusters.md says what is kept all the
// same.
func TestPostgresAsynchronous(t *testing.T) {
	failures(t)
	p := newPair(t, false, func(ctx context.Context, p *pair) error {
		if err := p.set(ctx, p.Standby.DSN, "primary_conninfo", ""); err != nil {
			return err
		}
		if err := until(ctx, func(ctx context.Context) bool { return !p.standbyIs(ctx, "true") }); err != nil {
			return err
		}
		if err := arrive(ctx, p); err != nil {
			return err
		}
		return p.Primary.Kill(ctx)
	})
	run(t, p, p.URL(), "", soak.Delivered, soak.CommittedOnly, soak.Outcomes, soak.Ordered, soak.Once, soak.OneEffect, soak.SameAnswer)
}

func newPair(t *testing.T, synchronous bool, fault func(ctx context.Context, p *pair) error) *pair {
	t.Helper()
	p := &pair{PostgresPair: private.PostgresPair(t), synchronous: synchronous, fault: fault}
	if err := p.connectStandby(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// connectStandby waits until the standby follows, and makes it synchronous.
func (p *pair) connectStandby(ctx context.Context) error {
	err := until(ctx, func(ctx context.Context) bool { return p.standbyIs(ctx, "state = 'streaming'") })
	if err != nil || !p.synchronous {
		return err
	}
	if err := p.set(ctx, p.Primary.DSN, "synchronous_standby_names", "*"); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) bool { return p.standbyIs(ctx, "sync_state = 'sync'") })
}

func (p *pair) standbyIs(ctx context.Context, condition string) bool {
	var n int
	err := p.do(ctx, p.Primary.DSN, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT count(*) FROM pg_stat_replication WHERE "+condition).Scan(&n)
	})
	return err == nil && n > 0
}

// set changes a setting of a running server.
func (p *pair) set(ctx context.Context, url, name, value string) error {
	return p.do(ctx, url, func(db *sql.DB) error {
		for _, statement := range []string{fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value), "SELECT pg_reload_conf()"} {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// do opens the database for one purpose: a pool would keep connections to the
// servers of before.
func (p *pair) do(_ context.Context, url string, f func(db *sql.DB) error) error { return do(url, f) }

func do(url string, f func(db *sql.DB) error) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // its connection is broken, or idle
	return f(db)
}

func (p *pair) fail(ctx context.Context, _ int, served func(ctx context.Context) error) error {
	if err := p.fault(ctx, p); err != nil {
		return err
	}
	old := p.Primary
	if err := p.Promote(ctx); err != nil {
		return err
	}
	// As cluster managers do: the new primary serves without a standby until it
	// has one again.
	if err := p.set(ctx, p.Primary.DSN, "synchronous_standby_names", ""); err != nil {
		return err
	}
	if err := served(ctx); err != nil {
		return err
	}
	// A server that was frozen or cut off serves its clients again, beside its
	// successor, until the cluster manager ends it.
	if proxy := p.proxies[old.Name]; proxy != nil {
		proxy.Thaw()
	}
	if err := old.Thaw(ctx); err == nil {
		if err := p.stale(ctx, old.DSN); err != nil {
			return err
		}
	}
	if err := p.Rejoin(ctx); err != nil {
		return err
	}
	return p.connectStandby(ctx)
}

// stale waits until the old primary has answered clients. Their commits wait
// there for a standby that does not come back, so no event need arrive.
func (p *pair) stale(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no client talks to the old primary"))
	defer cancel()
	first := -1
	return until(ctx, func(ctx context.Context) bool {
		var n int
		err := p.do(ctx, url, func(db *sql.DB) error {
			return db.QueryRowContext(ctx, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
		})
		if err != nil {
			return false
		}
		if first < 0 {
			first = n
		}
		return n >= first+100
	})
}

func (p *pair) served(ctx context.Context) error {
	return until(ctx, func(ctx context.Context) bool {
		return p.do(ctx, p.clientURL(), func(db *sql.DB) error {
			_, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS served (at timestamptz); INSERT INTO served VALUES (now())")
			return err
		}) == nil
	})
}

// progress counts the effects on the primary.
func (p *pair) progress(ctx context.Context) (int, error) { return effects(ctx, p.Primary.DSN) }

// effects counts the effects of the soak in a database.
func effects(ctx context.Context, url string) (n int, err error) {
	err = do(url, func(db *sql.DB) error {
		var schema string
		err := db.QueryRowContext(ctx, "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'soak%'").Scan(&schema)
		if err != nil {
			return err
		}
		return db.QueryRowContext(ctx, strings.ReplaceAll(`SELECT count(*) FROM "soak".waybill_effect`, "soak", schema)).Scan(&n)
	})
	return n, err
}
