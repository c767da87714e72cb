//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"time"
)

// tcpAddress finds the host and port in a go-sql-driver data source name.
var tcpAddress = regexp.MustCompile(`@tcp\(([^)]+)\)`)

// plainAddress is the form of Kafka's address.
var plainAddress = regexp.MustCompile(`^[^/@=:]+:\d+$`)

// addressIn returns host:port of a data source name, or "" if it contains none
// or has a form that only its driver understands.
func addressIn(dsn string) string {
	if m := tcpAddress.FindStringSubmatch(dsn); m != nil {
		return m[1]
	}
	if plainAddress.MatchString(dsn) {
		return dsn
	}
	u, err := url.Parse(dsn)
	if err != nil || u.Port() == "" {
		return ""
	}
	return u.Host
}

// answers checks that a server listens at the address in a variable. The
// variables of "testserver start" outlive "testserver stop" in the shell that
// evaluated them; without this check every test would fail with a refused
// connection. The error shows the address, never the password.
func answers(ctx context.Context, env, dsn string) error {
	address := addressIn(dsn)
	if address == "" {
		return nil
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s names a server at %s, which does not answer (%w): start it, or `unset %s` to get a private one",
			env, address, err, env)
	}
	return conn.Close()
}
