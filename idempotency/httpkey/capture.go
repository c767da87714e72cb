package httpkey

import (
	"bufio"
	"bytes"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
)

// capture is the ResponseWriter of a handler. It buffers the answer until it is
// stored, so that a client that has seen an answer gets the same answer again.
// An answer that cannot be buffered (it is flushed, hijacked, or too large) is
// passed through from then on, and is not stored.
type capture struct {
	w http.ResponseWriter
	// outer are the headers set before the handler.
	outer http.Header
	// header is visible to the handler; sent is its copy when the status was
	// written.
	header, sent http.Header
	status       int // 0 until it is written
	body         bytes.Buffer
	max          int
	// through reports that writes go directly to w.
	through bool
	// held reports that nothing may pass through: the answer of a transaction
	// is sent after its commit.
	held bool
}

func newCapture(w http.ResponseWriter, limit int, held bool) *capture {
	outer := w.Header().Clone()
	return &capture{w: w, outer: outer, header: outer.Clone(), max: limit, held: held}
}

// Header implements [http.ResponseWriter]. The map may be nil here, because
// Clone of a nil map is nil.
func (c *capture) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

func (c *capture) WriteHeader(status int) {
	if c.status != 0 {
		return
	}
	if 100 <= status && status < 200 && status != http.StatusSwitchingProtocols {
		// An informational status is not an answer. A held answer waits for its
		// commit, and so do early hints.
		if !c.held {
			c.show(c.Header())
			c.w.WriteHeader(status)
		}
		return
	}
	if status < 100 || status > 999 {
		panic("httpkey: invalid status") // as net/http does
	}
	c.status, c.sent = status, c.Header().Clone()
	if status == http.StatusSwitchingProtocols && !c.held {
		c.release()
	}
}

// bodyless reports whether an answer with this status has no body.
func bodyless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}

func (c *capture) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if bodyless(c.status) && !c.through {
		return 0, http.ErrBodyNotAllowed
	}
	if !c.through && !c.held && c.body.Len()+len(p) > c.max {
		c.release()
	}
	if c.through {
		return c.w.Write(p)
	}
	return c.body.Write(p)
}

// release sends the buffered answer, and passes everything through from then
// on.
func (c *capture) release() {
	if c.through {
		return
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	c.through = true
	c.show(c.sent)
	c.w.WriteHeader(c.status)
	if c.body.Len() > 0 {
		// A disconnected client does not matter.
		_, _ = c.w.Write(c.body.Bytes())
		c.body.Reset()
	}
}

// show replaces the headers of w with h.
func (c *capture) show(h http.Header) {
	target := c.w.Header()
	clear(target)
	maps.Copy(target, h)
}

// finish completes an answer: a handler that wrote nothing means 200. net/http
// would guess the content type from the first bytes of the body; finish does
// that here, so that the type is stored and replayed.
func (c *capture) finish() {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if c.through || c.body.Len() == 0 {
		return
	}
	if _, typed := c.sent["Content-Type"]; !typed && c.sent.Get("Content-Encoding") == "" && c.sent.Get("Transfer-Encoding") == "" {
		c.sent.Set("Content-Type", http.DetectContentType(c.body.Bytes()))
	}
}

// send sends a new answer: all of its headers, and its trailers.
func (c *capture) send(replayed string) {
	delete(c.sent, replayed) // only a replayed answer has it
	if !c.through {
		c.release()
	}
	declared := c.sent.Values("Trailer")
	for name, values := range c.header {
		_, prefixed := strings.CutPrefix(name, http.TrailerPrefix)
		listed := slices.ContainsFunc(declared, func(line string) bool {
			return slices.ContainsFunc(strings.Split(line, ","), func(s string) bool { return http.CanonicalHeaderKey(strings.TrimSpace(s)) == name })
		})
		if prefixed || listed {
			c.w.Header()[name] = values
		}
	}
}

// discard drops the answer, so that another can be sent. It reports false if
// part of it was already sent.
func (c *capture) discard() bool {
	if c.through {
		return false
	}
	c.show(c.outer)
	return true
}

// Unwrap is for http.ResponseController: deadlines and full duplex belong to
// the connection.
func (c *capture) Unwrap() http.ResponseWriter { return c.w }

// FlushError sends the buffered answer. From then on the answer is a stream,
// and is not stored.
func (c *capture) FlushError() error {
	if c.held {
		return http.ErrNotSupported
	}
	c.release()
	return http.NewResponseController(c.w).Flush()
}

// Flush implements [http.Flusher].
func (c *capture) Flush() { _ = c.FlushError() }

// Hijack returns the connection. Data sent on it is not stored.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if c.held {
		return nil, nil, http.ErrNotSupported
	}
	conn, rw, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		if c.status == 0 {
			c.status, c.sent = http.StatusSwitchingProtocols, http.Header{}
		}
		c.through = true
	}
	return conn, rw, err
}
