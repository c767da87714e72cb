package natsembed_test

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill/broker/natsembed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg natsembed.Config) *natsembed.Server {
	t.Helper()
	s, err := natsembed.Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Confirmed messages survive a restart.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, natsembed.Config{Dir: dir, User: "u", Password: "p"})
	if _, err := nats.Connect(s.URL()); err == nil {
		t.Error("a client without a password is let in")
	}
	js := connect(t, s)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	js.Conn().Close()
	s.Close()

	s = start(t, natsembed.Config{Dir: dir, User: "u", Password: "p"})
	defer s.Close()
	js = connect(t, s)
	defer js.Conn().Close()
	stream, err := js.Stream(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "hello" {
		t.Errorf("%v, %v", m, err)
	}
}

func connect(t *testing.T, s *natsembed.Server) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(s.URL(), nats.UserInfo("u", "p"))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]natsembed.Config{
		"no folder":                   {},
		"open to all, without a word": {Dir: t.TempDir(), Host: "0.0.0.0"},
		"a folder that cannot be":     {Dir: "/dev/null/x"},
	} {
		if s, err := natsembed.Start(t.Context(), cfg); err == nil {
			s.Close()
			t.Errorf("%s is accepted", name)
		}
	}
}

// A server without a configured password generates one, which its URL and a
// private file in its directory contain, also after a restart.
func TestStrangersAreNotLetIn(t *testing.T) {
	dir := t.TempDir()
	first := start(t, natsembed.Config{Dir: dir})
	address := first.URL()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	for name, user := range map[string]*url.Userinfo{"no name": nil, "a guess": url.UserPassword("waybill", "waybill"), "the name alone": url.User("waybill")} {
		stranger := *u
		stranger.User = user
		if conn, err := nats.Connect(stranger.String()); err == nil {
			conn.Close()
			t.Errorf("%s is let in", name)
		}
	}
	conn, err := nats.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	first.Close()
	again := start(t, natsembed.Config{Dir: dir})
	defer again.Close()
	own, err := natsembed.Password(dir)
	if err != nil || own.String() != u.User.String() {
		t.Fatalf("the folder has another password than the server had, or none: %v", err)
	}
	if conn, err = nats.Connect(again.URL()); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(entry.Name(), "password") && (entry.Name() != "password" || info.Mode().Perm()&0o077 != 0) {
			t.Errorf("%s has %o", entry.Name(), info.Mode().Perm())
		}
	}
}

// The running server syncs every message before it confirms it, also after a
// restart, and stores its streams in Dir. The test checks the server's
// configuration, because it cannot cut the power.
func TestEveryMessageIsSynced(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		s := start(t, natsembed.Config{Dir: dir})
		if js := s.JetStream(); !js.SyncAlways || !strings.HasPrefix(js.StoreDir, dir) {
			t.Errorf("the server has %+v", js)
		}
		s.Close()
	}
}
