package httpapi

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// TestReadingNeedsTheTokenIfOneIsSet includes this machine, which has other
// users and programs.
func TestReadingNeedsTheTokenIfOneIsSet(t *testing.T) {
	b := newEnv(t)
	for _, route := range append(Routes(), Route{Method: "GET", Path: "/metrics", access: look}) {
		if route.access != look {
			continue
		}
		path := strings.Replace(route.Path, "{id}", "01M7N903F9DD5EG4G2G29ABYX7", 1)
		if code, text := b.call("GET", path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s without the token: %d %s", path, code, text)
		}
		if code, text := b.call("GET", path, "", withToken); code == http.StatusUnauthorized {
			t.Errorf("%s with the token: %d %s", path, code, text)
		}
	}
}

func TestShortTokensAreRefused(t *testing.T) {
	for n, refused := range map[int]bool{0: false, 1: true, 15: true, 16: false} {
		text := strings.Repeat("k", n)
		err := Check(settings.HTTP{Enabled: true, Listen: "127.0.0.1:0", Token: settings.NewSecret(text)})
		if (err != nil) != refused {
			t.Errorf("a token of %d bytes: %v", n, err)
		}
		if err != nil && strings.Contains(err.Error(), "kk") {
			t.Errorf("the error shows the token: %v", err)
		}
	}
}

// TestGuessesAreLoggedAndSlowed checks that a client with thirty wrong tokens
// is rejected for a while, and others are not.
func TestGuessesAreLoggedAndSlowed(t *testing.T) {
	b := newEnv(t)
	var log bytes.Buffer
	b.daemon.Log = slog.New(slog.NewTextHandler(&log, nil))
	handler, err := newHandler(b.daemon, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.handler = handler
	at := func(address string) func(*http.Request) {
		return func(r *http.Request) { r.RemoteAddr = address + ":4711" }
	}
	refused, unheard := 0, 0
	for range 300 {
		switch code, text := b.call("GET", "/api/stats", "", wrongToken, at("192.0.2.7")); code {
		case http.StatusUnauthorized:
			refused++
		case http.StatusTooManyRequests:
			unheard++
		default:
			t.Fatalf("a wrong token: %d %s", code, text)
		}
	}
	if refused < guessesAtOnce || unheard == 0 {
		t.Errorf("%d guesses were checked, %d were rejected", refused, unheard)
	}
	if n := strings.Count(log.String(), "without a valid token"); n != refused || !strings.Contains(log.String(), "192.0.2.7") {
		t.Errorf("%d of %d guesses are in the log:\n%.500s", n, refused, log.String())
	}
	if strings.Contains(log.String(), token[1:]) {
		t.Error("the log shows the given token")
	}
	if code, text := b.call("GET", "/api/stats", "", withToken, at("192.0.2.8")); code != http.StatusOK {
		t.Errorf("a valid token from another address: %d %s", code, text)
	}
}

// TestDoor checks that one guess is restored per second, and that the number of
// addresses is bounded.
func TestDoor(t *testing.T) {
	var d door
	now := time.Now()
	for range guessesAtOnce {
		d.failed("a")
	}
	if d.opens("a", now) {
		t.Error("accepted after the last guess")
	}
	if !d.opens("b", now) {
		t.Error("another address is affected")
	}
	if !d.opens("a", now.Add(2*guessEvery)) {
		t.Error("no guess was restored")
	}
	for i := range 3 * addresses {
		d.failed(fmt.Sprint(i))
	}
	if n := len(d.guesses); n > addresses+1 {
		t.Errorf("%d addresses are kept", n)
	}
}

// TestReadyzHidesNames checks that a probe without a token gets the number of
// unavailable destinations, not their names.
func TestReadyzHidesNames(t *testing.T) {
	b := newEnv(t, "relay.name", "orders-of-acme")
	b.relay.Progress.Pause("partner-bank", true)
	_, text := b.call("GET", "/readyz", "")
	if strings.Contains(text, "partner-bank") || strings.Contains(text, "orders-of-acme") || !strings.Contains(text, `"destinations_down": 1`) {
		t.Errorf("without the token: %s", text)
	}
	if _, text := b.call("GET", "/readyz", "", wrongToken); strings.Contains(text, "partner-bank") {
		t.Errorf("with a wrong token: %s", text)
	}
	if _, text := b.call("GET", "/readyz", "", withToken); !strings.Contains(text, "partner-bank") || !strings.Contains(text, "orders-of-acme") {
		t.Errorf("with the token: %s", text)
	}
}
