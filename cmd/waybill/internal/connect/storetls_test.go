package connect

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/internal/testtls"
)

// TestTLSOfStores: a store is opened with TLS on a real server that accepts
// nothing else, and only if the server's certificate is valid and signed by the
// authority in the URL.
func TestTLSOfStores(t *testing.T) {
	a := testtls.New(t)
	another := testtls.New(t).CA
	valid := manage.Certificates{Cert: a.ServerCert, Key: a.ServerKey, CA: a.CA}
	expired := manage.Certificates{Cert: a.OldCert, Key: a.OldKey, CA: a.CA}
	pgClient := "&sslcert=" + a.Cert + "&sslkey=" + a.Key
	for _, tc := range []struct {
		server, scheme string
		with           manage.Certificates
		queries        map[string]bool
	}{
		{testserver.PostgresName, "postgres", valid, map[string]bool{
			"sslmode=verify-full&sslrootcert=" + a.CA + pgClient:    true,
			"sslmode=verify-full&sslrootcert=" + another + pgClient: false,
			"sslmode=verify-full" + pgClient:                        false, // the system's authorities
			"sslmode=verify-full&sslrootcert=" + a.CA:               false, // no certificate of the client
			"sslmode=require" + pgClient:                            true,
			"sslmode=disable":                                       false,
		}},
		{testserver.PostgresName, "postgres", expired, map[string]bool{"sslmode=verify-full&sslrootcert=" + a.CA + pgClient: false}},
		{testserver.MariaDBName, "mysql", valid, mysqlQueries(a, another)},
		{testserver.MariaDBName, "mysql", expired, map[string]bool{"ca=" + a.CA: false}},
		{testserver.MySQLName, "mysql", valid, mysqlQueries(a, another)},
		{testserver.MySQLName, "mysql", expired, map[string]bool{"ca=" + a.CA: false}},
	} {
		name := tc.server
		if tc.with == expired {
			name += " with an expired certificate"
		}
		t.Run(name, func(t *testing.T) {
			address := tc.scheme + "://waybill:waybill@" + private.StartSecure(t, tc.server, tc.with) + "/waybill?"
			for query, works := range tc.queries {
				s, err := OpenStore(t.Context(), settings.Store{URL: settings.NewSecret(address + query), ConnectTimeout: time.Minute, Connections: 2}, false)
				if (err == nil) != works {
					t.Errorf("%s: %v", query, err)
				}
				if err == nil {
					_ = s.Close()
					continue
				}
				wantTLSError(t, query, err)
			}
		})
	}
}

// mysqlQueries are those of MariaDB and MySQL, which demand no certificate of
// the client.
func mysqlQueries(a *testtls.Authority, another string) map[string]bool {
	return map[string]bool{
		"ca=" + a.CA + a.Client(): true,
		"ca=" + a.CA:              true,
		"ca=" + another:           false,
		"tls=true":                false, // the system's authorities
		"insecure=true":           true,
		"tls=skip-verify":         true,
		"":                        false, // no TLS
	}
}

// wantTLSError: the error says what is wrong, and has no password.
func wantTLSError(t *testing.T, query string, err error) {
	t.Helper()
	text := err.Error()
	if !errors.Is(err, ErrUnreachable) || strings.Contains(text, "waybill:waybill") {
		t.Errorf("%s: %v", query, err)
	}
	refused := strings.Contains(text, "x509:")
	if advised := strings.Contains(hint.Of(err), "authority"); advised != refused {
		t.Errorf("%s: %v; the advice is %q", query, err, hint.Of(err))
	}
}

// TestTLSParametersOfMySQL: wrong parameters are reported before a connection
// is made.
func TestTLSParametersOfMySQL(t *testing.T) {
	a := testtls.New(t)
	for _, query := range []string{"ca=" + a.CA + ".missing", "ca=" + a.Key, "cert=" + a.Cert, "insecure=maybe", "tls=true&ca=" + a.CA} {
		_, err := OpenStore(t.Context(), settings.Store{URL: settings.NewSecret("mysql://u:secret@127.0.0.1:1/shop?" + query)}, false)
		bad := errors.Is(err, ErrBadSetting) || errors.Is(err, ErrBadURL)
		if !bad || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", query, err)
		}
	}
}
