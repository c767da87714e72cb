package shop

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
)

// Webhooks is a line of signed HTTP requests to an inventory in a process of
// its own. Faults kill that process: no code of it runs afterwards. The process
// is the same program again, whose main function calls [Inventory] first.
type Webhooks struct {
	site     Site
	settings settings
	sink     *webhook.Sink
	desk     *http.Server // answers the inventory
	serving  sync.WaitGroup

	mu      sync.Mutex
	up      bool               // the inventory accepts requests
	stopped chan struct{}      // nil unless the line is stopped; Start closes it
	kill    context.CancelFunc // of the current process
}

// settings are what the process of an inventory needs to know.
type settings struct {
	Database string // the shop's file
	Address  string // of the inventory
	Desk     string // the URL of the shop's answers
	Secret   string // signs the events
}

// inventoryVariable is the environment variable with the settings.
const inventoryVariable = "WAYBILL_DEMO_INVENTORY"

// Words implements [Line].
func (*Webhooks) Words() Words {
	return Words{
		Destination: "inventory", Label: "webhooks", Parts: "a shop on SQLite, webhooks, and an inventory in a process of its own",
		AckLost: "a response 204 was lost: sent again", Stop: "kill -9 of the inventory, for 0.4 s",
		Crash: "kill -9 of the inventory before its commit", DeadAfter: "kill -9 of the inventory after its commit",
	}
}

// Open implements [Line].
func (l *Webhooks) Open(ctx context.Context, site Site) error {
	l.site = site
	var listen net.ListenConfig
	desk, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	own, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(fmt.Errorf("demo: %w", err), desk.Close())
	}
	key, token := make([]byte, 32), rand.Text()
	_, _ = rand.Read(key) // never fails
	l.settings = settings{
		Database: filepath.Join(site.Dir, file), Address: own.Addr().String(), Desk: "http://" + desk.Addr().String() + "/" + token + "/",
		Secret: "whsec_" + base64.StdEncoding.EncodeToString(key),
	}
	// The inventory listens there, again after every restart.
	if err := own.Close(); err != nil {
		return errors.Join(fmt.Errorf("demo: %w", err), desk.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /"+token+"/{moment}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, string(site.moment(r.Context(), moment(r.PathValue("moment"))))) // a killed inventory reads no answer
	})
	l.desk = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(silent.Handler(), slog.LevelError)}
	l.serving.Go(func() { _ = l.desk.Serve(desk) }) // ends with Close
	l.sink, err = webhook.NewSink("http://"+l.settings.Address, webhook.Config{Secrets: []string{l.settings.Secret}})
	return err
}

// Sink implements [Line].
func (l *Webhooks) Sink() waybill.Sink { return l.sink }

// Inventory implements [Line].
func (l *Webhooks) Inventory(ctx context.Context) error {
	for {
		if err := l.wait(ctx); err != nil {
			return nil // ctx ended while the line was stopped
		}
		life, kill := context.WithCancel(ctx)
		l.mu.Lock()
		l.kill = kill
		stopped := l.stopped != nil // since wait
		l.mu.Unlock()
		if stopped {
			kill()
			continue
		}
		err := l.process(life)
		killed := life.Err() != nil
		kill()
		switch {
		case ctx.Err() != nil:
			return nil
		case !killed:
			return fmt.Errorf("demo: the inventory ended by itself: %w", err)
		}
	}
}

// wait waits until the line is not stopped.
func (l *Webhooks) wait(ctx context.Context) error {
	for {
		l.mu.Lock()
		stopped := l.stopped
		l.mu.Unlock()
		if stopped == nil {
			return ctx.Err()
		}
		select {
		case <-stopped:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// process runs the process of the inventory until its end, and kills it when
// ctx ends.
func (l *Webhooks) process(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(l.settings)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), inventoryVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// The process ends when its standard input does, so that it does not
	// survive this one.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := io.ReadFull(stdout, make([]byte, len(ready))); err == nil {
		l.setUp(true)
	}
	_, _ = io.Copy(io.Discard, stdout) // until its end
	l.setUp(false)
	return errors.Join(cmd.Wait(), stdin.Close(), errors.New(strings.TrimSpace(stderr.String())))
}

func (l *Webhooks) setUp(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
}

// Stop implements [Line].
func (l *Webhooks) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped == nil {
		l.stopped = make(chan struct{})
	}
	if l.kill != nil {
		l.kill()
	}
}

// Start implements [Line].
func (l *Webhooks) Start(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped != nil {
		close(l.stopped)
		l.stopped = nil
	}
	return nil
}

// Up implements [Line].
func (l *Webhooks) Up() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// InFlight implements [Line]: an event stays in the outbox until its response.
func (*Webhooks) InFlight(context.Context) (int, error) { return 0, nil }

// Close implements [Line].
func (l *Webhooks) Close() error {
	if l.desk == nil {
		return nil
	}
	err := l.desk.Close()
	l.serving.Wait()
	return err
}
