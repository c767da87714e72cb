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

// capture is the ResponseWriter that a handler gets. It holds the answer back until it is stored, so that whoever has seen an answer will see it
// again. An answer that cannot be held back (it is flushed, hijacked, or too large) goes through from then on, and is not stored.
type capture struct {
	w http.ResponseWriter
	// outer are the headers as they were before the handler.
	outer http.Header
	// header is what the handler sees and changes; sent is what it was when the status was written.
	header, sent http.Header
	status       int // 0 until it is written
	body         bytes.Buffer
	max          int
	// through: from now on everything goes to w.
	through bool
	// held: nothing may go through; the answer of a transaction is sent after its commit.
	held bool
}

func newCapture(w http.ResponseWriter, most int, held bool) *capture {
	outer := w.Header().Clone()
	return &capture{w: w, outer: outer, header: outer.Clone(), max: most, held: held}
}

// own makes sure that there is a map to write to: Clone of a nil one is nil.
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
		// It is not an answer. What is held waits for its commit, early hints among it.
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

// bodyless reports whether an answer of a status has no body.
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

// release sends what was held back, and lets everything through from now on.
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
		_, _ = c.w.Write(c.body.Bytes()) // a client that has gone does not matter
		c.body.Reset()
	}
}

// show makes h the headers of w.
func (c *capture) show(h http.Header) {
	target := c.w.Header()
	clear(target)
	maps.Copy(target, h)
}

// finish ends an answer: a handler that wrote nothing meant 200. net/http would guess the type of the body from its first bytes; it is done here, so
// that it is stored and the same when the answer is sent again.
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

// send sends a fresh answer: all of its headers, and its trailers.
func (c *capture) send(replayed string) {
	delete(c.sent, replayed) // only an answer that is sent again has it
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

// discard forgets the answer, so that another can be sent. It reports false if that is too late.
func (c *capture) discard() bool {
	if c.through {
		return false
	}
	c.show(c.outer)
	return true
}

// Unwrap is for http.ResponseController: deadlines and full duplex are the connection's.
func (c *capture) Unwrap() http.ResponseWriter { return c.w }

// FlushError sends what there is. From then on the answer is a stream, and not stored.
func (c *capture) FlushError() error {
	if c.held {
		return http.ErrNotSupported
	}
	c.release()
	return http.NewResponseController(c.w).Flush()
}

// Flush is for those who ask for an http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// Hijack hands out the connection. What is said on it is not stored.
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
