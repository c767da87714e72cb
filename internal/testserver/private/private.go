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
	return in.Servers[0]
}

// lines passes progress on to the test's log.
type lines struct{ tb testing.TB }

// Write implements [io.Writer].
func (l lines) Write(b []byte) (int, error) {
	l.tb.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}
