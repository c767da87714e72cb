//go:build linux || darwin

package process_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/internal/e2e/process/child"
)

// webVariable makes the test binary a server whose handlers run once per key.
const webVariable = "WAYBILL_PROCESS_WEB"

// web configures such a server.
type web struct {
	keyed
	// Address is the file for the server's address.
	Address string
}

// runWeb is the server: POST /tx runs in one transaction, POST /plain claims
// its key before it runs.
func runWeb(text string) error {
	var c web
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	u, err := c.open(context.Background())
	if err != nil {
		return err
	}
	once, err := httpkey.New(u.keys, httpkey.Config{Scope: httpkey.Unscoped})
	if err != nil {
		return err
	}
	answer := func(w http.ResponseWriter, name string) {
		w.Header().Set("Location", "/purchases/"+name)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "bought "+name)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /tx", once.WrapTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		name, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if err := u.business(r.Context(), tx, string(name)); err != nil {
			return err
		}
		answer(w, string(name))
		c.die("inside the transaction")
		return nil
	}))
	mux.Handle("POST /plain", once.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.die("in the handler")
		answer(w, string(name))
	})))
	socket, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it lives as long as the process
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Address+".new", []byte(socket.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(c.Address+".new", c.Address); err != nil { // atomically
		return err
	}
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(socket)
}

// webServer is a server process.
type webServer struct {
	*child.Process
	b   *keyBed
	url string
}

// serve starts a server that dies at a given point, or not at all.
func (b *keyBed) serve(die string) *webServer {
	b.Helper()
	c := web{keyed: keyed{Place: b.Place, Die: die}, Address: filepath.Join(b.TempDir(), "address")}
	text, err := json.Marshal(c)
	if err != nil {
		b.Fatal(err)
	}
	p, err := child.Start(webVariable + "=" + string(text))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Kill)
	s := &webServer{Process: p, b: b}
	b.awaitWeb("the server listens", func() bool {
		address, err := os.ReadFile(c.Address)
		s.url = "http://" + string(address)
		return err == nil || !p.Alive()
	})
	return s
}

func (b *keyBed) awaitWeb(what string, ok func() bool) {
	b.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// post requests a purchase, under a key of the same name.
func (s *webServer) post(path, name string) (status int, body string, replayed bool, err error) {
	r, err := http.NewRequestWithContext(s.b.Context(), http.MethodPost, s.url+path, strings.NewReader(name))
	if err != nil {
		return 0, "", false, err
	}
	r.Close = true // a connection to a dead process must not be reused
	r.Header.Set("Idempotency-Key", `"`+name+`"`)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", false, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), resp.Header.Get("Idempotent-Replayed") == "true", err
}

// dies sends a request that kills its server.
func (s *webServer) dies(path, name string) {
	s.b.Helper()
	if status, body, _, err := s.post(path, name); err == nil {
		s.b.Errorf("the dying server answers %d %s", status, body)
	}
	select {
	case <-s.Ended():
	case <-time.After(patience):
		s.b.Fatal("the server that was to die is alive")
	}
}

// bought repeats a request until it has an answer, and returns whether the
// answer was stored, and how often the server asked to wait.
func (s *webServer) bought(path, name string) (replayed bool, waited int) {
	s.b.Helper()
	s.b.awaitWeb("the repeat gets an answer", func() bool {
		status, body, again, err := s.post(path, name)
		switch {
		case err != nil:
			s.b.Fatal(err)
		case status == http.StatusConflict && strings.Contains(body, "in-progress"):
			// the connection, or the lease, of the dead server still exists
			waited++
			return false
		case status != http.StatusCreated || body != "bought "+name:
			s.b.Fatalf("the repeat gets %d %s", status, body)
		}
		replayed = again
		return true
	})
	return replayed, waited
}

// TestServerKilledInOneTransaction: a server that is killed before, inside or
// after the commit of WrapTx leaves nothing, or everything. A client that
// repeats its request, at another server, gets one order and one answer.
func TestServerKilledInOneTransaction(t *testing.T) {
	withKeys(t, true, func(b *keyBed) {
		next := b.serve("")
		for i, where := range []string{"inside the transaction", "before the commit", "after the commit"} {
			name := fmt.Sprintf("p%d", i)
			b.serve(where).dies("/tx", name)
			committed := int64(0)
			if where == "after the commit" {
				committed = 1
			}
			if rows, events := b.rows(name), b.events(name); rows != committed || events != committed {
				b.Errorf("killed %s: %d rows, %d events, want %d", where, rows, events, committed)
			}
			replayed, _ := next.bought("/tx", name)
			if replayed != (committed == 1) {
				b.Errorf("killed %s: the repeat got a stored answer: %t", where, replayed)
			}
			if replayed, _ := next.bought("/tx", name); !replayed {
				b.Errorf("killed %s: the answer is not stored", where)
			}
			if rows, events := b.rows(name), b.events(name); rows != 1 || events != 1 {
				b.Errorf("killed %s, and repeated: %d rows, %d events", where, rows, events)
			}
		}
	})
}

// TestServerKilledInTheHandler: a server that is killed while Wrap's handler
// runs leaves a claim. Repeated requests must wait until its lease has expired;
// then one of them runs.
func TestServerKilledInTheHandler(t *testing.T) {
	withKeys(t, true, func(b *keyBed) {
		next := b.serve("")
		b.serve("in the handler").dies("/plain", "p")
		replayed, waited := next.bought("/plain", "p")
		if replayed {
			b.Error("there is an answer of a handler that never returned")
		}
		b.Logf("told to wait %d times", waited)
		if replayed, _ := next.bought("/plain", "p"); !replayed {
			b.Error("the answer is not stored")
		}
	})
}
