package httpkey

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"

	"github.com/waybillhq/waybill/idempotency"
)

// replyType says that a stored result is an answer of HTTP, as encode writes it.
const replyType = "application/vnd.waybill.http-reply.v1"

// reply is a stored answer.
type reply struct {
	Status int `json:"status"`
	// Header has a line for each value, in order: values are neither joined nor split.
	Header [][2]string `json:"header"`
	body   []byte
}

// encode writes an answer: a checksum of the rest, the length of the head, the head in JSON, and the body as it is.
func (r reply) encode() []byte {
	head, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and a number: it cannot fail
	}
	out := make([]byte, 8, 8+len(head)+len(r.body))
	binary.BigEndian.PutUint32(out[4:], uint32(len(head)))
	out = append(append(out, head...), r.body...)
	binary.BigEndian.PutUint32(out, crc32.ChecksumIEEE(out[4:]))
	return out
}

var errCorrupt = errors.New("httpkey: the stored answer cannot be read")

func decode(a idempotency.Answer) (reply, error) {
	var r reply
	b := a.Body
	if a.ContentType != replyType {
		return r, fmt.Errorf("%w: its type is not %s", errCorrupt, replyType)
	}
	if len(b) < 8 || binary.BigEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:]) {
		return r, fmt.Errorf("%w: its checksum does not fit", errCorrupt)
	}
	n := uint64(binary.BigEndian.Uint32(b[4:]))
	if n > uint64(len(b)-8) {
		return r, fmt.Errorf("%w: its head is cut off", errCorrupt)
	}
	if err := json.Unmarshal(b[8:8+n], &r); err != nil {
		return r, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if r.Status < 200 || r.Status > 999 {
		return r, fmt.Errorf("%w: its status is %d", errCorrupt, r.Status)
	}
	r.body = b[8+n:]
	return r, nil
}

// stored returns what is kept of an answer.
func (c *Config) stored(a *capture) reply {
	r := reply{Status: a.status, body: a.body.Bytes()}
	for _, name := range c.Headers {
		for _, value := range a.sent[name] {
			r.Header = append(r.Header, [2]string{name, value})
		}
	}
	return r
}

// write sends a stored answer.
func (r reply) write(w http.ResponseWriter, kept []string, replayed string) {
	h := w.Header()
	for _, name := range kept {
		h.Del(name)
	}
	h["Content-Type"] = nil // without a type of its own it had none: net/http must not guess one
	for _, line := range r.Header {
		h[line[0]] = append(h[line[0]], line[1])
	}
	h.Set(replayed, "true")
	w.WriteHeader(r.Status)
	if !bodyless(r.Status) {
		_, _ = w.Write(r.body) // a client that has gone does not matter
	}
}
