package testtls

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Case is a set of parameters of an address, and the expected result.
type Case struct {
	Query string
	// Works: a client connects; Warns: it logs that the connection is not safe.
	Works, Warns bool
}

// Cases returns the cases for every client whose address has the parameters ca,
// cert, key and insecure, with a server that requires certificates. other is a
// parameter that does not concern TLS.
func (a *Authority) Cases(t testing.TB, other string) map[string]Case {
	t.Helper()
	client := a.Client()
	return map[string]Case{
		"with the authority":                 {Query: "ca=" + a.CA + client, Works: true},
		"with another authority":             {Query: "ca=" + New(t).CA + client},
		"with the system's":                  {Query: other + client},
		"without a certificate":              {Query: "ca=" + a.CA},
		"insecure":                           {Query: "insecure=true" + client, Works: true, Warns: true},
		"insecure, and without certificates": {Query: "insecure=true", Warns: true},
	}
}

// Client returns the parameters, appended to others, with which a client
// presents its certificate.
func (a *Authority) Client() string { return "&cert=" + a.Cert + "&key=" + a.Key }

// Try connects once for each case. open connects with a query in the address;
// if that works, use must use the connection and close it.
func Try(t *testing.T, cases map[string]Case, open func(t *testing.T, query string, log *slog.Logger) (use func(t *testing.T), err error)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var log buffer // clients log from goroutines of their own
			use, err := open(t, c.Query, slog.New(slog.NewTextHandler(&log, nil)))
			if (err == nil) != c.Works {
				t.Fatalf("it connects: %v, want %v: %v", err == nil, c.Works, err)
			}
			if warned := strings.Contains(log.String(), "INSECURE"); warned != c.Warns {
				t.Errorf("logged %q", log.String())
			}
			if err == nil {
				use(t)
			}
		})
	}
}

type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
