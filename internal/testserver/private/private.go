//go:build linux || darwin

package private

import (
	"context"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
)

// Start starts a server that ends with the test; the names are those of package
// testserver. Where the shared server of that name is missing, the test is
// skipped or fails, as with [testserver.Address].
func Start(tb testing.TB, name string) manage.Server {
	tb.Helper()
	return start(tb, name).Servers[0]
}

// KafkaCluster starts a cluster of Kafka brokers that end with the test. Only
// the first, which is the controller, can be started again when it was killed.
func KafkaCluster(tb testing.TB, brokers int) []manage.Server {
	tb.Helper()
	in := start(tb, testserver.KafkaName)
	if err := in.AddBrokers(tb.Context(), brokers-1); err != nil {
		tb.Fatal(err)
	}
	return in.Servers
}

func start(tb testing.TB, name string) *manage.Instance {
	tb.Helper()
	testserver.Address(tb, name)
	home, err := manage.Open(tb.Context(), ".", lines{tb})
	if err != nil {
		tb.Fatal(err)
	}
	in, err := home.Run(tb.Context(), manage.Request{Only: []string{name}, Private: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := in.Stop(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return in
}

// lines passes progress on to the test's log.
type lines struct{ tb testing.TB }

// Write implements [io.Writer].
func (l lines) Write(b []byte) (int, error) {
	l.tb.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}
