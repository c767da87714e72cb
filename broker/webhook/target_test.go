package webhook_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
)

// Every target has its own secret and headers: those of one customer are
// useless against another.
func TestTargetsShareNothing(t *testing.T) {
	type place struct {
		server *httptest.Server
		c      *consumer
		token  string
	}
	places := map[string]*place{"a": {token: "token-a"}, "b": {token: "token-b"}}
	secrets := map[string]string{"a": secret, "b": second}
	for name, p := range places {
		p.c = &consumer{}
		r, err := webhook.NewReceiver(p.c, webhook.ReceiverConfig{Secrets: []string{secrets[name]}})
		if err != nil {
			t.Fatal(err)
		}
		p.server = serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if got := req.Header.Get("Authorization"); got != p.token {
				t.Errorf("%s was sent the authorization %q", name, got)
			}
			r.ServeHTTP(w, req)
		}))
	}
	s, err := webhook.NewSink("", webhook.Config{Target: func(ev *waybill.Event) (webhook.Target, error) {
		switch name := ev.AggregateID; name {
		case "a", "b":
			return webhook.Target{
				URL: places[name].server.URL, Secrets: []string{secrets[name]}, Header: http.Header{"Authorization": {places[name].token}},
			}, nil
		case "wrong":
			return webhook.Target{URL: places["a"].server.URL, Secrets: []string{"whsec_canary"}}, nil
		case "open":
			return webhook.Target{URL: places["a"].server.URL}, nil
		}
		return webhook.Target{}, errors.New("no such customer")
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, p := range places {
		if err := deliver(t, s, delivery(name)); err != nil || len(p.c.events()) != 1 {
			t.Errorf("%s: %v, %d events", name, err, len(p.c.events()))
		}
	}
	a, b := delivery("a"), delivery("b")
	if s.Destination(&a.Event) == s.Destination(&b.Event) {
		t.Error("both have one destination")
	}
	// An invalid or missing secret fails the attempt and does not pause the
	// host, where others have endpoints.
	for name, want := range map[string]waybill.Class{"wrong": waybill.ClassRetry, "open": waybill.ClassRetry, "none": waybill.ClassPermanent} {
		d := delivery(name)
		err := deliver(t, s, d)
		if class, _ := waybill.Classify(err); class != want || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: class %v, want %v: %v", name, class, want, err)
		}
		if (s.Destination(&d.Event) == "") != (name == "none") {
			t.Errorf("%s: its destination is %q", name, s.Destination(&d.Event))
		}
	}
	if n := len(places["a"].c.events()); n != 1 {
		t.Errorf("%d events reached a", n)
	}
	target := func(*waybill.Event) (webhook.Target, error) { return webhook.Target{}, nil }
	for name, cfg := range map[string]webhook.Config{
		"Secrets": {Target: target, Secrets: []string{secret}}, "Unsigned": {Target: target, Unsigned: true},
		"Header": {Target: target, Header: http.Header{"A": {"b"}}}, "Endpoint": {Target: target, Endpoint: func(*waybill.Event) (string, error) { return "", nil }},
	} {
		if _, err := webhook.NewSink("", cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s beside Target: %v", name, err)
		}
	}
}

// With PublicOnly, a sink connects to no address of its own network, whatever
// name resolves to it.
func TestPublicOnly(t *testing.T) {
	var reached atomic.Int32
	server := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"} {
		err := deliver(t, sink(t, "http://"+host+":"+u.Port(), webhook.Config{PublicOnly: true}), delivery("A-1"))
		if class, _ := waybill.Classify(err); class != waybill.ClassRetry || !errors.Is(err, webhook.ErrNotPublic) {
			t.Errorf("%s: class %v: %v", host, class, err)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
	if _, err := webhook.NewSink("https://host", webhook.Config{Secrets: []string{secret}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}, Client: http.DefaultClient}); err == nil {
		t.Error("a client with a config of its own was taken")
	}
	if _, err := webhook.NewSink("https://host", webhook.Config{Secrets: []string{secret}, PublicOnly: true, Client: http.DefaultClient}); err == nil {
		t.Error("a client whose dialer refuses nothing was taken")
	}
}

func TestPublicDialer(t *testing.T) {
	control := webhook.PublicDialer().Control
	for address, want := range map[string]bool{
		"93.184.215.14": true, "1.1.1.1": true, "172.32.0.1": true, "[2606:4700::1]": true, "[64:ff9b::101:101]": true, "[::ffff:1.1.1.1]": true,
		"127.0.0.1": false, "127.9.9.9": false, "10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.100.100.200": false, "192.0.0.192": false, "168.63.129.16": false, "0.0.0.0": false, "0.1.2.3": false,
		"100.64.0.1": false, "198.18.0.1": false, "192.0.2.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"[::1]": false, "[::]": false, "[fe80::1]": false, "[fe80::1%eth0]": false, "[2606:4700::1%eth0]": false, "[fc00::1]": false, "[fd00:ec2::254]": false,
		"[ff02::1]": false, "[::ffff:10.0.0.1]": false, "[::10.0.0.1]": false, "[64:ff9b::a00:1]": false, "[64:ff9b:1::1]": false,
		"[2002:7f00:1::1]": false, "[2001::1]": false, "[2001:db8::1]": false, "[fec0::1]": false, "[3fff::1]": false,
	} {
		if err := control("tcp", address+":443", nil); (err == nil) != want || err != nil && !errors.Is(err, webhook.ErrNotPublic) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := control("unix", "/run/docker.sock", nil); err == nil {
		t.Error("a socket was connected to")
	}
}
