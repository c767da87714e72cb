//go:build linux || darwin

package manage

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Each probe uses just enough of the broker's protocol to know that a client
// can publish. This program has no dependencies: it starts the servers that the
// clients are tested against.

// probePatience bounds one probe; a slower server is probed again.
const probePatience = 5 * time.Second

// dialProbe connects to a loopback port.
func dialProbe(ctx context.Context, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: probePatience}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(probePatience))
}

// probeRedis returns the id of the answering process, once it has loaded its
// data.
func probeRedis(ctx context.Context, port int) (pid int, err error) {
	conn, err := dialProbe(ctx, port)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	// The server refuses PING while it loads data, but never INFO.
	if _, err := io.WriteString(conn, "PING\r\nINFO server\r\nQUIT\r\n"); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return 0, err
	}
	text := string(answer)
	if !strings.HasPrefix(text, "+PONG\r\n") {
		line, _, _ := strings.Cut(text, "\r\n")
		return 0, fmt.Errorf("PING was answered with %q", line)
	}
	_, rest, _ := strings.Cut(text, "\nprocess_id:")
	number, _, _ := strings.Cut(rest, "\r")
	return strconv.Atoi(number)
}

// The frames of AMQP 0-9-1 that open a connection as guest: the expected class
// and method, and the response.
var amqpDialogue = []struct {
	class, method uint16
	answer        []byte
}{
	// start, start-ok
	{10, 10, amqpMethod(10, 11, "\x00\x00\x00\x00"+"\x05PLAIN"+"\x00\x00\x00\x0c\x00guest\x00guest"+"\x05en_US")},
	{10, 30, append( // tune; tune-ok and open
		amqpMethod(10, 31, "\x00\x01"+"\x00\x02\x00\x00"+"\x00\x00"),
		amqpMethod(10, 40, "\x01/"+"\x00"+"\x00")...)},
	// open-ok, close
	{10, 41, amqpMethod(10, 50, "\x00\x00"+"\x00"+"\x00\x00\x00\x00")},
	{10, 51, nil}, // close-ok
}

// amqpMethod returns a method frame on channel 0.
func amqpMethod(class, method uint16, args string) []byte {
	frame := []byte{1, 0, 0}
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(args)))
	frame = binary.BigEndian.AppendUint16(frame, class)
	frame = binary.BigEndian.AppendUint16(frame, method)
	return append(append(frame, args...), 0xce)
}

// probeAMQP opens a connection to the virtual host / and closes it cleanly.
func probeAMQP(ctx context.Context, port int) error {
	conn, err := dialProbe(ctx, port)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "AMQP\x00\x00\x09\x01"); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for _, step := range amqpDialogue {
		var head [7]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[3:])
		if size < 4 || size > 1<<20 {
			return fmt.Errorf("not a frame of AMQP: %q", head)
		}
		body := make([]byte, size+1) // and the end of the frame
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		class, method := binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])
		if class != step.class || method != step.method {
			return fmt.Errorf("got method %d.%d, want %d.%d", class, method, step.class, step.method)
		}
		if _, err := conn.Write(step.answer); err != nil {
			return err
		}
	}
	return nil
}

// probeKafka requests the versions of the protocol, and then the brokers: a
// broker that is not in its own metadata yet cannot lead a partition.
func probeKafka(ctx context.Context, port int) error {
	conn, err := dialProbe(ctx, port)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	const apiVersions, metadata = 18, 3
	if _, err := kafkaCall(conn, apiVersions, 0, nil); err != nil {
		return err
	}
	// for no topic
	answer, err := kafkaCall(conn, metadata, 1, []byte{0, 0, 0, 0})
	if err != nil {
		return err
	}
	if len(answer) < 4 || binary.BigEndian.Uint32(answer) == 0 {
		return errors.New("no broker is registered yet")
	}
	return nil
}

func kafkaCall(conn net.Conn, key, version uint16, body []byte) ([]byte, error) {
	const id = 7
	request := binary.BigEndian.AppendUint32(nil, uint32(2+2+4+2+len(body)))
	request = binary.BigEndian.AppendUint16(request, key)
	request = binary.BigEndian.AppendUint16(request, version)
	request = binary.BigEndian.AppendUint32(request, id)
	// the client has no name
	request = binary.BigEndian.AppendUint16(request, 0)
	if _, err := conn.Write(append(request, body...)); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > 1<<24 || binary.BigEndian.Uint32(head[4:]) != id {
		return nil, fmt.Errorf("not an answer of Kafka: %q", head)
	}
	answer := make([]byte, size-4)
	_, err := io.ReadFull(conn, answer)
	return answer, err
}

// probeHTTP requires the status 200 of a page.
func probeHTTP(ctx context.Context, port int, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(port)+path, nil)
	if err != nil {
		return err
	}
	// no proxy for loopback
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return nil
}
