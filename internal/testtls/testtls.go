// Package testtls creates a certificate authority for a test, and puts TLS in
// front of a server without TLS.
package testtls

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Authority is a certificate authority of one test.
type Authority struct {
	// CA is a file with its certificate; Cert and Key are files with a
	// client's.
	CA, Cert, Key string
	// ServerCert and ServerKey are files with the certificate of a server at
	// 127.0.0.1 and localhost.
	ServerCert, ServerKey string
	// OldCert and OldKey are those of a certificate that has expired.
	OldCert, OldKey string

	pool *x509.CertPool
}

// New creates an authority.
func New(t testing.TB) *Authority {
	t.Helper()
	dir := t.TempDir()
	a := &Authority{pool: x509.NewCertPool()}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "waybill test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootKey := newKey(t)
	a.CA, _ = a.write(t, dir, "ca", root, rootKey, root, rootKey)
	text, err := os.ReadFile(a.CA)
	if err != nil || !a.pool.AppendCertsFromPEM(text) {
		t.Fatal("the authority's certificate cannot be read: ", err)
	}
	leaf := func(serial int64, name string, usage x509.ExtKeyUsage, until time.Duration) (string, string) {
		return a.write(t, dir, name, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(until),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
			DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		}, newKey(t), root, rootKey)
	}
	a.Cert, a.Key = leaf(2, "client", x509.ExtKeyUsageClientAuth, 24*time.Hour)
	a.ServerCert, a.ServerKey = leaf(3, "server", x509.ExtKeyUsageServerAuth, 24*time.Hour)
	a.OldCert, a.OldKey = leaf(4, "expired", x509.ExtKeyUsageServerAuth, -time.Minute)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *Authority) write(
	t testing.TB, dir, name string, template *x509.Certificate, key *ecdsa.PrivateKey, parent *x509.Certificate, parentKey *ecdsa.PrivateKey,
) (certFile, keyFile string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Server returns the config of a server. With clients, it requires client
// certificates of the authority.
func (a *Authority) Server(t testing.TB, clients bool) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.ServerCert, a.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clients {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, a.pool
	}
	return cfg
}

// Front puts TLS in front of a server (host:port) until the test ends, and
// returns the address to connect to.
func (a *Authority) Front(t testing.TB, upstream string, clients bool) string {
	t.Helper()
	var lc net.ListenConfig
	plain, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := tls.NewListener(plain, a.Server(t, clients))
	ctx, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { pass(ctx, c, upstream) })
		}
	})
	t.Cleanup(func() {
		end()
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// pass joins a connection to the server until one of them, or ctx, ends.
func pass(ctx context.Context, c net.Conn, upstream string) {
	defer c.Close() //nolint:errcheck // it ends
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // it ends
	stop := context.AfterFunc(ctx, func() {
		_ = c.Close()
		_ = server.Close()
	})
	defer stop()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, server}, {server, c}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = c.Close()
			_ = server.Close()
		})
	}
	both.Wait()
}
