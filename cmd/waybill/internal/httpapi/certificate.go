package httpapi

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// certificatePause is how long a certificate that could not be read is left alone: strangers decide how often they connect, and must not
// decide how much is logged.
const certificatePause = 10 * time.Second

// certificate is read again when its files change, so that whoever renews it need not stop deliveries. Until both files are readable and
// belong together, the one before is used: they are replaced one after the other.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	seen    [2]os.FileInfo // of the files that current was read from
	resting time.Time      // until when nothing is read
}

// readCertificate reads a certificate for the first time.
func readCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.read(); err != nil {
		return nil, hint.New("both are files in PEM, and the key is the certificate's", "http.cert, http.key: %w", err)
	}
	return c, nil
}

// get is [tls.Config.GetCertificate].
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unchanged() || time.Now().Before(c.resting) {
		return c.current, nil
	}
	if err := c.read(); err != nil {
		c.resting = time.Now().Add(certificatePause)
		c.log.Warn("waybill: the new certificate cannot be used; the one before stays", slog.Any("error", err))
	} else {
		c.log.Info("waybill: the certificate was read again", slog.String("file", c.certFile))
	}
	return c.current, nil
}

// read reads both files. They are looked at before: if they change while they are read, they differ from what was seen, and are read again.
func (c *certificate) read() error {
	seen, err := c.look()
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

func (c *certificate) look() (files [2]os.FileInfo, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if files[i], err = os.Stat(name); err != nil {
			return files, err
		}
	}
	return files, nil
}

func (c *certificate) unchanged() bool {
	now, err := c.look()
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
