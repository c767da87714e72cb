//go:build linux || darwin

package manage

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
)

// answering listens on a port and answers each connection's first bytes.
func answering(t *testing.T, answer string) int {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadByte()
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestProbesRefuseOtherAnswers: the process that listens on a port need not be
// the started server, and a listening server need not be ready.
func TestProbesRefuseOtherAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":      "",
		"http":         "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
		"loading":      "-LOADING Redis is loading the dataset in memory\r\n",
		"other amqp":   "AMQP\x00\x00\x09\x01",
		"long garbage": strings.Repeat("\xff", 4096),
	} {
		t.Run(name, func(t *testing.T) {
			port := answering(t, answer)
			if pid, err := probeRedis(t.Context(), port); err == nil {
				t.Errorf("probeRedis = %d", pid)
			}
			if probeAMQP(t.Context(), port) == nil {
				t.Error("probeAMQP is content")
			}
			if probeKafka(t.Context(), port) == nil {
				t.Error("probeKafka is content")
			}
			if probeHTTP(t.Context(), port, "/") == nil {
				t.Error("probeHTTP is content")
			}
		})
	}
}

// TestProbeKafkaWantsABroker: a broker that has just started has not registered
// itself yet.
func TestProbeKafkaWantsABroker(t *testing.T) {
	const id = "\x00\x00\x00\x07"
	versions := "\x00\x00\x00\x06" + id + "\x00\x00"
	none := "\x00\x00\x00\x08" + id + "\x00\x00\x00\x00"
	one := "\x00\x00\x00\x08" + id + "\x00\x00\x00\x01"
	if err := probeKafka(t.Context(), answering(t, versions+none)); err == nil || !strings.Contains(err.Error(), "no broker") {
		t.Errorf("without a broker: %v", err)
	}
	if err := probeKafka(t.Context(), answering(t, versions+one)); err != nil {
		t.Errorf("with a broker: %v", err)
	}
}
