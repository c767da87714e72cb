package driver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
)

// TLS parameters of broker URLs. Every broker package accepts them.
const (
	paramCA         = "ca"          // file of trusted certificates, instead of the system's
	paramCert       = "cert"        // file of the client certificate
	paramKey        = "key"         // file of the client certificate's key
	paramInsecure   = "insecure"    // true: accept any certificate
	paramSkipVerify = "skip_verify" // go-redis's name for insecure
)

// paramCreds names a file with NATS credentials.
const paramCreds = "creds"

// TakeTLS removes the parameters ca, cert, key and insecure from a URL's query
// and returns the TLS config that they describe, based on base, which may be
// nil. Without any of them TakeTLS returns base. The first three are names of
// PEM files, which TakeTLS reads immediately.
func TakeTLS(query url.Values, base *tls.Config) (*tls.Config, error) {
	ca, cert, key := query.Get(paramCA), query.Get(paramCert), query.Get(paramKey)
	insecure, err := insecureIn(query)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{paramCA, paramCert, paramKey, paramInsecure, paramSkipVerify} {
		query.Del(name)
	}
	if ca == "" && cert == "" && key == "" && insecure == "" {
		return base, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if base != nil {
		cfg = base.Clone()
	}
	if insecure == "true" {
		cfg.InsecureSkipVerify = true //nolint:gosec // it was asked for, and is logged
	}
	if ca != "" {
		if cfg.RootCAs, err = readCA(ca); err != nil {
			return nil, err
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("parameters cert and key: want both or none")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("parameters cert and key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// insecureIn returns the value of the parameter insecure, "" if it is missing.
func insecureIn(query url.Values) (string, error) {
	insecure := ""
	for _, name := range []string{paramInsecure, paramSkipVerify} {
		if text := query.Get(name); text != "" {
			if insecure = text; text != "true" && text != "false" {
				return "", fmt.Errorf("parameter %s: want true or false", name)
			}
		}
	}
	return insecure, nil
}

// readCA reads a file of trusted certificates.
func readCA(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("parameter ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("parameter ca: %s holds no certificate in PEM", file)
	}
	return pool, nil
}

// WarnInsecure logs a warning if the config accepts any certificate.
func WarnInsecure(log *slog.Logger, cfg *tls.Config, url string) {
	if cfg != nil && cfg.InsecureSkipVerify {
		log.Warn("INSECURE: the broker's certificate is not verified, so events can be read and changed on the network; "+
			"remove insecure=true, and set the certificate authority with ca=FILE", "broker", Redact(url))
	}
}

// isFile reports whether a parameter names a file, which is not a secret.
func isFile(name string) bool {
	return slices.Contains([]string{paramCA, paramCert, paramKey, paramCreds}, name)
}
