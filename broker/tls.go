package broker

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

// The parameters of a broker's URL that say how to connect with TLS. Each broker's package knows
// them all.
const (
	paramCA         = "ca"          // a file with the certificates that are trusted, instead of the system's
	paramCert       = "cert"        // a file with the certificate that the client shows
	paramKey        = "key"         // a file with the key of that
	paramInsecure   = "insecure"    // true: any certificate is taken
	paramSkipVerify = "skip_verify" // what go-redis calls it
)

// paramCreds names a file with the credentials of a NATS account.
const paramCreds = "creds"

// TakeTLS takes the parameters ca, cert, key and insecure out of a URL's query and returns the
// config that they describe, on top of base, which may be nil. Without any of them it returns base.
// The first three are names of files in PEM, which are read now.
func TakeTLS(query url.Values, base *tls.Config) (*tls.Config, error) {
	ca, cert, key := query.Get(paramCA), query.Get(paramCert), query.Get(paramKey)
	insecure := ""
	for _, name := range []string{paramInsecure, paramSkipVerify} {
		if text := query.Get(name); text != "" {
			if insecure = text; text != "true" && text != "false" {
				return nil, fmt.Errorf("parameter %s: want true or false", name)
			}
		}
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
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("parameter ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("parameter ca: %s holds no certificate in PEM", ca)
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

// WarnInsecure logs a warning if the config takes any certificate.
func WarnInsecure(log *slog.Logger, cfg *tls.Config, url string) {
	if cfg != nil && cfg.InsecureSkipVerify {
		log.Warn("waybill: INSECURE: the broker's certificate is not verified, so anyone on the way can read and change events; "+
			"remove insecure=true, and name the certificate authority with ca=FILE", "broker", Redact(url))
	}
}

// isFile reports whether a parameter names a file, which is no secret.
func isFile(name string) bool {
	return slices.Contains([]string{paramCA, paramCert, paramKey, paramCreds}, name)
}
