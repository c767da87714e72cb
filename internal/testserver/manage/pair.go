//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// postgresNode is a PostgreSQL server that begins as a standby of another.
type postgresNode struct {
	postgres
	label   string // the server's name
	primary int    // the port of the server that it copies and follows
}

func (n postgresNode) name() string { return n.label }

// programs: besides the server's, those that make and promote a standby.
func (n postgresNode) programs() []program {
	return append(n.postgres.programs(), program{names: []string{"pg_basebackup"}, packages: []string{"postgresql-client"}})
}

// copied implements copier.
func (postgresNode) copied() {}

// recipe copies the primary, and writes the settings with which the copy
// follows it.
func (n postgresNode) recipe(data string) []step {
	return []step{{argv: []string{
		n.binary("pg_basebackup"), "--pgdata=" + data, "--dbname=" + n.dsn(n.primary), "--write-recovery-conf",
		"--wal-method=stream", "--checkpoint=fast", "--no-sync",
	}}}
}

// ready: clients can connect to a standby, too.
func (n postgresNode) ready(ctx context.Context, r running) bool {
	if n.postgres.ready(ctx, r) {
		return true
	}
	b, err := os.ReadFile(filepath.Join(r.at.data, "postmaster.pid"))
	lines := strings.Split(string(b), "\n")
	return err == nil && len(lines) > 7 && lines[0] == strconv.Itoa(r.pid) && strings.TrimSpace(lines[7]) == "standby"
}

// PostgresPair is a primary and a standby that follows it. The roles change
// with Promote and Rejoin.
type PostgresPair struct {
	in      *Instance
	Primary Server
	Standby Server
}

// AddStandby starts a standby of the instance's PostgreSQL server.
func (in *Instance) AddStandby(ctx context.Context) (*PostgresPair, error) {
	i := slices.IndexFunc(in.Servers, func(s Server) bool { return s.Name == testserver.PostgresName })
	if i < 0 {
		return nil, errors.New("the instance has no PostgreSQL server to follow")
	}
	follower := postgresNode{label: testserver.PostgresName + "-2", primary: in.Servers[i].Port}
	if err := in.home.install(ctx, follower.programs(), false); err != nil {
		return nil, err
	}
	if err := in.start(ctx, []engine{follower}); err != nil {
		return nil, err
	}
	return &PostgresPair{in: in, Primary: in.Servers[i], Standby: in.Servers[len(in.Servers)-1]}, nil
}

// URL connects to the server that accepts writes. The old primary comes first
// as long as the standby was not promoted, and afterwards, too: a client must
// not depend on the order.
func (p *PostgresPair) URL() string {
	var hosts []string
	for _, s := range p.in.Servers {
		if strings.HasPrefix(s.Name, testserver.PostgresName) {
			hosts = append(hosts, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)))
		}
	}
	return fmt.Sprintf("postgres://%[1]s:%[1]s@%[2]s/%[1]s?sslmode=disable&target_session_attrs=read-write&connect_timeout=1",
		login, strings.Join(hosts, ","))
}

// Promote makes the standby the primary. The old primary is not touched: if it
// runs, both accept writes.
func (p *PostgresPair) Promote(ctx context.Context) error {
	acct, err := accountOf(p.Standby.User)
	if err != nil {
		return err
	}
	at := placeOf(p.in.dir, p.Standby.Name)
	promote := step{argv: []string{postgres{}.binary("pg_ctl"), "promote", "--wait", "--pgdata=" + at.data}}
	if err := runStep(ctx, acct, at, promote); err != nil {
		return err
	}
	p.Primary, p.Standby = p.Standby, p.Primary
	return nil
}

// Rejoin ends the old primary if it runs, and starts it as a standby of the new
// one, with a new copy of its data and on its old port.
func (p *PostgresPair) Rejoin(ctx context.Context) error {
	if err := p.Standby.Kill(ctx); err != nil {
		return err
	}
	acct, err := accountOf(p.Standby.User)
	if err != nil {
		return err
	}
	at := placeOf(p.in.dir, p.Standby.Name)
	if err := os.RemoveAll(at.data); err != nil {
		return err
	}
	follower := postgresNode{label: p.Standby.Name, primary: p.Primary.Port}
	if err := p.in.home.fill(ctx, follower, acct, at, p.Standby.Version); err != nil {
		return err
	}
	return p.Standby.restart(ctx, follower, acct)
}
