//go:build linux || darwin

package brokers_test

import (
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// ownPort returns a port of 127.0.0.1 for a server that is started later,
// possibly several times and in another process. A socket reserves the port
// until the test ends: it is bound but does not listen, so the kernel assigns
// the port to no other socket, and a server that names the port may listen on
// it. Systems other than Linux refuse that, so there the port is free in
// between.
func ownPort(tb testing.TB) int {
	tb.Helper()
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	must(tb, err)
	release := func() { _ = syscall.Close(fd) }
	if runtime.GOOS == "linux" {
		tb.Cleanup(release)
	} else {
		defer release()
	}
	must(tb, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	must(tb, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	must(tb, err)
	at, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		tb.Fatalf("the socket's name is %T", name)
	}
	return at.Port
}

// TestOwnPort: a server may repeatedly listen on a port that a test owns, and
// in between the kernel does not assign the port to another socket.
func TestOwnPort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux lets a server listen at a port that another socket keeps")
	}
	port := ownPort(t)
	var lc net.ListenConfig
	for range 3 {
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(port))
		must(t, err)
		must(t, l.Close())
	}
	var all []net.Listener
	defer func() {
		for _, l := range all {
			_ = l.Close()
		}
	}()
	for range 500 {
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		must(t, err)
		all = append(all, l)
		if at, ok := l.Addr().(*net.TCPAddr); ok && at.Port == port {
			t.Fatal("another server has got the port")
		}
	}
}
