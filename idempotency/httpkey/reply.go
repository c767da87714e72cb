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

// replyType is the content type of a stored HTTP answer, as encode writes it.
const replyType = "application/vnd.waybill.http-reply.v1"

// reply is a stored answer.
type reply struct {
	Status int `json:"status"`
	// Header has one entry per value, in order: values are neither joined nor
	// split.
	Header [][2]string `json:"header"`
	body   []byte
}

// encode encodes an answer: a checksum of the rest, the length of the head, the
// head as JSON, and the unchanged body.
func (r reply) encode() []byte {
	head, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and a number: encoding cannot fail
	}
	out := make([]byte, 8, 8+len(head)+len(r.body))
	binary.BigEndian.PutUint32(out[4:], uint32(len(head)))
	out = append(append(out, head...), r.body...)
	binary.BigEndian.PutUint32(out, crc32.ChecksumIEEE(out[4:]))
	return out
}

var errCorrupt = errors.New("httpkey: the stored answer cannot be decoded")

func decode(a idempotency.Answer) (reply, error) {
	var r reply
	b := a.Body
	if a.ContentType != replyType {
		return r, fmt.Errorf("%w: its content type is not %s", errCorrupt, replyType)
	}
	if len(b) < 8 || binary.BigEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:]) {
		return r, fmt.Errorf("%w: checksum mismatch", errCorrupt)
	}
	n := uint64(binary.BigEndian.Uint32(b[4:]))
	if n > uint64(len(b)-8) {
		return r, fmt.Errorf("%w: truncated head", errCorrupt)
	}
	if err := json.Unmarshal(b[8:8+n], &r); err != nil {
		return r, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if r.Status < 200 || r.Status > 999 {
		return r, fmt.Errorf("%w: invalid status %d", errCorrupt, r.Status)
	}
	r.body = b[8+n:]
	return r, nil
}

// stored returns the stored part of an answer.
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
	// The answer had no type: net/http must not guess one.
	h["Content-Type"] = nil
	for _, line := range r.Header {
		h[line[0]] = append(h[line[0]], line[1])
	}
	h.Set(replayed, "true")
	w.WriteHeader(r.Status)
	if !bodyless(r.Status) {
		_, _ = w.Write(r.body) // a disconnected client does not matter
	}
}
