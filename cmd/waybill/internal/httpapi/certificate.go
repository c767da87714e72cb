package httpapi

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
)

// certificatePause is the interval between attempts to read an invalid
// certificate, so that incoming connections do not determine the number of
// reads.
const certificatePause = 10 * time.Second

// certificate is read again when its files change, so that a renewal needs no
// restart. The previous certificate stays in use until both files are readable
// and match, because they are replaced one after the other.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	reload            *outage.Log

	mu      sync.Mutex
	current *tls.Certificate
	seen    [2]os.FileInfo // the files of current
	resting time.Time      // no read before this time
}

// readCertificate reads a certificate for the first time.
func readCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{
		certFile: certFile, keyFile: keyFile, log: log,
		reload: outage.New(log, "reloading the certificate", logkey.File, certFile),
	}
	if err := c.read(); err != nil {
		return nil, hint.New("both must be PEM files, and the key must match the certificate", "http.cert, http.key: %w", err)
	}
	return c, nil
}

// get implements [tls.Config.GetCertificate].
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unchanged() || time.Now().Before(c.resting) {
		return c.current, nil
	}
	if err := c.read(); err != nil {
		c.resting = time.Now().Add(certificatePause)
		c.reload.Failed("read", err) // the previous one stays in use
	} else {
		c.reload.Succeeded("read")
		c.log.Info("certificate reloaded", slog.String(logkey.File, c.certFile))
	}
	return c.current, nil
}

// read reads both files. Their attributes are read first: a file that changes
// during the read differs from them, and is read again.
func (c *certificate) read() error {
	seen, err := c.stat()
	if err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.current, c.seen = &cert, seen
	return nil
}

func (c *certificate) stat() (files [2]os.FileInfo, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if files[i], err = os.Stat(name); err != nil {
			return files, err
		}
	}
	return files, nil
}

func (c *certificate) unchanged() bool {
	now, err := c.stat()
	if err != nil {
		return false
	}
	for i, file := range now {
		was := c.seen[i]
		if !os.SameFile(file, was) || !file.ModTime().Equal(was.ModTime()) || file.Size() != was.Size() {
			return false
		}
	}
	return true
}
