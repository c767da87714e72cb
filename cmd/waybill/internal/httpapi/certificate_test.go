package httpapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// authority signs certificates for this machine, with the given serial numbers.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a := &authority{ca, key, x509.NewCertPool()}
	a.pool.AddCert(ca)
	return a
}

// issue writes a certificate and its key into a folder, each atomically, as
// renewal tools do.
func (a *authority) issue(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	replace(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	replace(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return certFile, keyFile
}

func replace(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// secured is the API of a daemon on a real socket with a certificate,
// accessible from the network.
type secured struct {
	t       *testing.T
	address string
	log     *logged
	ca      *authority
	dir     string
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{t: t, log: &logged{}, ca: newAuthority(t), dir: t.TempDir()}
	certFile, keyFile := s.ca.issue(t, s.dir, 100)
	b := newEnv(t, "http.listen", "0.0.0.0:0", "http.cert", certFile, "http.key", keyFile)
	b.daemon.Log = slog.New(slog.NewTextHandler(s.log, nil))
	c, err := Component(b.daemon, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(s.log.String())[1])
	if err != nil {
		t.Fatal(err)
	}
	s.address = "127.0.0.1:" + port
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// reply is a response, with the certificate of its connection.
type reply struct {
	status, protocol int
	serial           int64
	text             string
}

// get sends a request over its own connection.
func (s *secured) get(url string, change ...func(*http.Request)) (got reply, err error) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, fn := range change {
		fn(r)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.ca.pool}, ForceAttemptHTTP2: true, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(r)
	if err != nil {
		return got, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	got = reply{status: answer.StatusCode, protocol: answer.ProtoMajor, text: string(text)}
	if answer.TLS != nil {
		got.serial = answer.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	return got, err
}

// TestTLS checks over a real socket that only the token gives access, and that
// plain HTTP does not work.
func TestTLS(t *testing.T) {
	s := newSecured(t)
	stats := "https://" + s.address + "/api/stats"
	got, err := s.get(stats, withToken)
	if err != nil || got.status != http.StatusOK || !strings.Contains(got.text, `"ready"`) || got.protocol != 2 || got.serial != 100 {
		t.Errorf("with the token: %v, %+v", err, got)
	}
	for name, change := range map[string]func(*http.Request){"no token": func(*http.Request) {}, "a wrong token": wrongToken, "no Bearer": bareToken} {
		if got, err := s.get(stats, change); err != nil || got.status != http.StatusUnauthorized || strings.Contains(got.text, "ready") {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
	if got, err := s.get("https://" + s.address + "/healthz"); err != nil || got.status != http.StatusOK {
		t.Errorf("a probe has no token: %v, %+v", err, got)
	}
	if got, err := s.get("http://"+s.address+"/api/stats", withToken); err == nil && got.status != http.StatusBadRequest || strings.Contains(got.text, "ready") {
		t.Errorf("plain HTTP: %+v", got)
	}
	old := &tls.Dialer{Config: &tls.Config{RootCAs: s.ca.pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}} //nolint:gosec // that is the test
	if conn, err := old.DialContext(t.Context(), "tcp", s.address); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 was accepted")
	}
}

// TestARenewedCertificateIsUsed covers daemons that run longer than a
// certificate is valid.
func TestARenewedCertificateIsUsed(t *testing.T) {
	s := newSecured(t)
	url := "https://" + s.address + "/healthz"
	for _, serial := range []int64{100, 101, 102} {
		if serial > 100 {
			s.ca.issue(t, s.dir, serial)
		}
		for range 2 {
			if got, err := s.get(url); err != nil || got.serial != serial {
				t.Errorf("the certificate is %d, want %d (%v)", got.serial, serial, err)
			}
		}
	}
	if n := strings.Count(s.log.String(), "certificate reloaded"); n != 2 {
		t.Errorf("%d reloads, want one for each renewal:\n%s", n, s.log)
	}
}

// TestABrokenRenewalChangesNothing checks that the previous certificate is used
// until a valid pair exists, and that connections do not fill the log.
func TestABrokenRenewalChangesNothing(t *testing.T) {
	ca, other, dir := newAuthority(t), t.TempDir(), t.TempDir()
	certFile, keyFile := ca.issue(t, dir, 1)
	otherCert, otherKey := ca.issue(t, other, 2)
	content := func(name string) []byte {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	synctest.Test(t, func(t *testing.T) {
		log := &logged{}
		later := func() { time.Sleep(certificatePause) } //nolint:forbidigo // synctest's time
		c, err := readCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		serves := func(when string, want int64) {
			t.Helper()
			for range 3 {
				cert, err := c.get(nil)
				if err != nil || cert == nil || cert.Leaf.SerialNumber.Int64() != want {
					t.Fatalf("%s: %v, want certificate %d", when, err, want)
				}
			}
		}
		warned := func(want int) {
			t.Helper()
			if n := strings.Count(log.String(), "level=WARN"); n != want {
				t.Errorf("%d warnings, want %d:\n%s", n, want, log)
			}
		}
		serves("nothing changed", 1)
		warned(0)
		replace(t, certFile, content(otherCert))
		serves("the key is still the old one", 1)
		warned(1)
		later()
		replace(t, certFile, []byte("half a file"))
		serves("the certificate is none", 1)
		warned(1)
		later()
		if err := os.Remove(certFile); err != nil {
			t.Fatal(err)
		}
		serves("no file", 1)
		warned(1)
		for range 4 {
			later()
			serves("no file yet", 1)
		}
		warned(2) // one line a minute
		replace(t, certFile, content(otherCert))
		replace(t, keyFile, content(otherKey))
		serves("the pause is not over", 1)
		later()
		serves("the pair is complete", 2)
		warned(2)
		if n := strings.Count(log.String(), "reloading the certificate recovered"); n != 1 {
			t.Errorf("%d lines about the recovery:\n%s", n, log)
		}
	})
	if _, err := readCertificate(certFile, dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a daemon must not start with a certificate it cannot use")
	}
}
