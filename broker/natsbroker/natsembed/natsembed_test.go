package natsembed_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill/broker/natsbroker/natsembed"
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

// What it has confirmed is there after a restart.
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
