//go:build linux || darwin

package private_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

func dial(t *testing.T, s manage.Server) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	return d.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)))
}

// say sends one line to a Redis server and returns the first line of the
// answer.
func say(t *testing.T, s manage.Server, line string) string {
	t.Helper()
	conn, err := dial(t, s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(answer)
}

func TestRedisKeepsItsDataWhenKilled(t *testing.T) {
	t.Parallel()
	s := private.Start(t, testserver.RedisName)
	if got := say(t, s, "SET a 1"); got != "+OK" {
		t.Fatalf("SET = %q", got)
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a server that runs was started again")
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t, s); err == nil {
		_ = conn.Close()
		t.Error("a killed server takes connections")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := say(t, s, "INCR a"); got != ":2" {
		t.Errorf("INCR after the restart = %q, want :2", got)
	}
}

// TestNATSCluster: a node that is killed rejoins the others with its data.
func TestNATSCluster(t *testing.T) {
	t.Parallel()
	c := private.NATSCluster(t, 3, nil)
	if len(c.Servers) != 3 || c.Servers[1].Name != "nats-2" || c.Servers[1].Version == "" {
		t.Fatalf("%+v", c.Servers)
	}
	if err := c.Restart(t.Context(), 1); err == nil {
		t.Error("a server that runs was started again")
	}
	if err := c.Servers[1].Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Whole(limited); err == nil || !strings.Contains(err.Error(), "nats-2") {
		t.Errorf("a cluster without one of its nodes is whole: %v", err)
	}
	if conn, err := dial(t, c.Servers[2]); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if err := c.Restart(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Whole(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFrozenServerDoesNotAnswerUntilThawed(t *testing.T) {
	t.Parallel()
	s := private.Start(t, testserver.RedisName)
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := dial(t, s) // the kernel accepts it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if n, err := conn.Read(make([]byte, 16)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("a frozen server answered with %d bytes, %v", n, err)
	}
	if err := s.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "+PONG\r\n" {
		t.Errorf("after the thaw: %q, %v", line, err)
	}
}

// TestRestartWaitsForItsPort: the port of a stopped server can be taken by any
// program, also by a client's own connection.
func TestRestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
	s := private.Start(t, testserver.RedisName)
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)))
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Restart(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Restart on a port that is taken = %v, want the context's end", err)
	}
	restarted := make(chan error, 1)
	go func() { restarted <- s.Restart(t.Context()) }()
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if got := say(t, s, "PING"); got != "+PONG" {
		t.Errorf("PING = %q", got)
	}
}

// TestBrokersComeBack: Restart returns only when a client can publish, as
// reported by the probe.
func TestBrokersComeBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{testserver.RabbitMQName, testserver.KafkaName, testserver.PulsarName, testserver.PostgresName, testserver.MariaDBName, testserver.MySQLName} {
		t.Run(name, func(t *testing.T) {
			s := private.Start(t, name)
			if err := s.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if conn, err := dial(t, s); err == nil {
				_ = conn.Close()
				t.Error("a killed server takes connections")
			}
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			conn, err := dial(t, s)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		})
	}
}
