package natsbroker_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testtls"
)

// serve starts a server with options that the embedded one does not have.
func serve(t *testing.T, opts *natsserver.Options) *natsserver.Server {
	t.Helper()
	opts.Host, opts.Port, opts.JetStream, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", natsserver.RANDOM_PORT, true, t.TempDir(), true, true
	s, err := natsserver.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	for !s.ReadyForConnections(time.Second) {
		if t.Context().Err() != nil {
			t.Fatal("the server is not ready")
		}
	}
	return s
}

// A sink and a source connect with TLS to a server whose certificate is signed
// by the authority in the URL, and show a client certificate. Without the
// authority no client connects, unless the URL says insecure=true, which is
// logged.
func TestTLS(t *testing.T) {
	a := testtls.New(t)
	address := serve(t, &natsserver.Options{TLS: true, TLSVerify: true, TLSConfig: a.Server(t, true)}).Addr().String()
	client := "&cert=" + a.Cert + "&key=" + a.Key
	for name, tc := range map[string]struct {
		url   string
		works bool
		warns bool
	}{
		"with the authority":     {"tls://" + address + "?ca=" + a.CA + client, true, false},
		"an authority says TLS":  {"nats://" + address + "?ca=" + a.CA + client, true, false},
		"of several servers":     {"nats://" + address + ",nats://" + address + "?ca=" + a.CA + client, true, false},
		"with another authority": {"tls://" + address + "?ca=" + testtls.New(t).CA + client, false, false},
		"with the system's":      {"tls://" + address, false, false},
		"without a certificate":  {"tls://" + address + "?ca=" + a.CA, false, false},
		"insecure":               {"tls://" + address + "?insecure=true" + client, true, true},
		"no such parameter":      {"tls://" + address + "?verify=false", false, false},
		"no such file":           {"tls://" + address + "?creds=/no/such.creds", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer // the client writes to it after the test, too
			b, err := natsbroker.Open(t.Context(), tc.url, natsbroker.Config{
				Stream: "orders", Subjects: []string{"orders.>"}, Create: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if (err == nil) != tc.works {
				t.Fatalf("Open: %v", err)
			}
			if err == nil {
				thereAndBack(t, b)
			}
			if warned := strings.Contains(log.String(), "INSECURE"); warned != tc.warns {
				t.Errorf("logged %q", log.String())
			}
		})
	}
}

type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// thereAndBack publishes an event, consumes it, and closes the broker.
func thereAndBack(t *testing.T, b *natsbroker.Broker) {
	t.Helper()
	s, err := b.Sink(natsbroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ev := eventfill.Defaults(waybill.Event{Type: "Ping", Topic: "orders.ping", Payload: []byte("{}")})
	if err := s.Deliver(t.Context(), []waybill.Delivery{{Event: ev, Attempt: 1}})[0]; err != nil {
		t.Fatal(err)
	}
	source, err := b.Source(natsbroker.SourceConfig{Durable: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	got := 0
	err = source.Run(ctx, once(func(n int) {
		got += n
		stop()
	}))
	if err != nil || got == 0 {
		t.Errorf("%d events, %v", got, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

type once func(n int)

func (f once) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	f(len(batch))
	return make([]error, len(batch))
}

// The URL names the credentials of the account.
func TestCredentials(t *testing.T) {
	pair := func(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
		t.Helper()
		keys, err := create()
		if err != nil {
			t.Fatal(err)
		}
		public, err := keys.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return keys, public
	}
	operator, operatorID := pair(nkeys.CreateOperator)
	account, accountID := pair(nkeys.CreateAccount)
	_, systemID := pair(nkeys.CreateAccount)
	user, userID := pair(nkeys.CreateUser)
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.NewAccountClaims(accountID)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	token, err := claims.Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	system, err := jwt.NewAccountClaims(systemID).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	userToken, err := jwt.NewUserClaims(userID).Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(userToken, seed)
	if err != nil {
		t.Fatal(err)
	}
	creds := filepath.Join(t.TempDir(), "shop.creds")
	if err := os.WriteFile(creds, text, 0o600); err != nil {
		t.Fatal(err)
	}
	resolver := &natsserver.MemAccResolver{}
	if err := resolver.Store(accountID, token); err != nil {
		t.Fatal(err)
	}
	if err := resolver.Store(systemID, system); err != nil {
		t.Fatal(err)
	}
	address := serve(t, &natsserver.Options{TrustedKeys: []string{operatorID}, AccountResolver: resolver, SystemAccount: systemID}).Addr().String()
	cfg := natsbroker.Config{Stream: "orders", Subjects: []string{"orders.>"}, Create: true}
	if _, err := natsbroker.Open(t.Context(), "nats://"+address, cfg); err == nil {
		t.Error("connected without credentials")
	}
	b, err := natsbroker.Open(t.Context(), "nats://"+address+"?creds="+creds, cfg)
	if err != nil {
		t.Fatal(err)
	}
	thereAndBack(t, b)
}
