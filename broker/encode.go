package broker

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/message"
)

// Encode returns the message for a delivery. The payload is shared with the
// delivery, not copied. Errors are permanent.
func (c *Codec) Encode(d *waybill.Delivery) (Message, error) { return c.Encoder(1).Encode(d) }

// Encoder returns an encoder for about n messages that are sent together. The
// messages share memory, which is released with the last of them.
func (c *Codec) Encoder(n int) *Encoder { return &Encoder{codec: c, left: max(n, 1)} }

// Encoder encodes messages that are sent together; see [Codec.Encoder]. An
// Encoder is not safe for concurrent use.
type Encoder struct {
	codec   *Codec
	left    int // estimate of the messages that are still to come
	headers []Header
	text    strings.Builder // append-only text that the messages share
}

// Shared memory per message: a typical message, and a message with all
// attributes set but no headers of its own.
const (
	defaultHeaders = 13
	maxHeaders     = 2 + len(attributes)
	defaultText    = 128
)

// room reserves space for a message, in memory that it shares with at most 64
// following messages.
func (e *Encoder) room(d *waybill.Delivery) {
	together := min(e.left, 64)
	if limit := maxHeaders + 2*len(d.Headers); cap(e.headers)-len(e.headers) < limit {
		n := defaultHeaders + 2 + len(d.Headers)
		if together > 1 {
			n = max(defaultHeaders*together, limit)
		}
		e.headers = make([]Header, 0, n)
	}
	if e.text.Cap()-e.text.Len() < defaultText {
		e.text = strings.Builder{}
		e.text.Grow(defaultText * together)
	}
	e.left = max(e.left-1, 1)
}

// Encode is [Codec.Encode].
func (e *Encoder) Encode(d *waybill.Delivery) (Message, error) {
	c := e.codec
	if d.ID.IsZero() {
		return Message{}, waybill.Permanent(errors.New("broker: event without id"))
	}
	topic, err := c.Topic(&d.Event)
	if err != nil {
		return Message{}, err
	}
	e.room(d)
	id := d.ID.String()
	m := Message{
		PublishID: message.PublishID(id, d.Replay), ID: d.ID, Topic: topic, Key: e.key(&d.Event), RoutingKey: d.RoutingKey,
		ContentType: d.ContentType, Payload: d.Payload,
	}
	if m.ContentType == "" {
		m.ContentType = waybill.JSON
	}
	w := writer{rules: &c.rules, names: c.names, headers: e.headers[len(e.headers):], text: &e.text}
	w.event(d, id, c.eventSource)
	w.check(attrContentType, m.ContentType)
	if c.rules.contentType != "" {
		w.plain(c.rules.contentType, m.ContentType)
	}
	w.user(d.Headers)
	if w.bad != "" {
		return Message{}, waybill.Permanent(fmt.Errorf("broker: event %s: %s contains a control character or is not valid UTF-8", d.ID, w.bad))
	}
	m.Headers = slices.Clip(w.headers)
	// The outbox has lower limits, but a row that was inserted with SQL may
	// exceed them.
	if err := bounded(&m); err != nil {
		return Message{}, waybill.Permanent(fmt.Errorf("broker: event %s: %w", d.ID, err))
	}
	e.headers = e.headers[:min(len(e.headers)+len(w.headers), cap(e.headers))]
	return m, nil
}

// key returns the key of an event's message.
func (e *Encoder) key(ev *waybill.Event) string {
	if ev.RoutingKey != "" {
		return ev.RoutingKey
	}
	return message.AppendAggregateKey(&e.text, ev)
}

// writer collects the headers of a message.
type writer struct {
	rules   *rules
	names   map[string]string // of [attributes]
	headers []Header
	text    *strings.Builder
	bad     string // the first field that is not valid
}

func (w *writer) event(d *waybill.Delivery, id, source string) {
	w.attr(attrSpecVersion, specVersion)
	w.attr(attrID, id)
	w.attr(attrSource, source)
	w.attr(attrType, d.Type)
	w.attr(attrSubject, d.AggregateID)
	w.time(attrTime, d.OccurredAt)
	w.attr(attrSchema, d.SchemaID)
	w.attr(attrTenant, d.TenantID)
	w.attr(attrAggregateType, d.AggregateType)
	w.attr(attrAggregateID, d.AggregateID)
	w.position(d.Position)
	w.number(attrReplay, d.Replay)
	w.attr(attrCorrelation, d.CorrelationID)
	w.attr(attrCausation, d.CausationID)
	w.number(attrSchemaVersion, d.SchemaVersion)
	w.attr(attrDedup, d.DedupKey)
	w.number(attrPriority, d.Priority)
	if d.Topic != d.Type {
		w.attr(attrTopic, d.Topic)
	}
	w.attr(attrRoutingKey, d.RoutingKey)
	w.time(attrAvailable, d.AvailableAt)
}

func (w *writer) attr(name, value string) {
	if value == "" {
		return
	}
	w.check(name, value)
	w.headers = append(w.headers, Header{w.names[name], w.rules.value(value)})
}

func (w *writer) number(name string, n int) {
	if n != 0 {
		w.attr(name, strconv.Itoa(n))
	}
}

func (w *writer) time(name string, t time.Time) {
	if !t.IsZero() {
		var text [len(time.RFC3339Nano) + 8]byte
		w.attr(name, w.keep(t.UTC().AppendFormat(text[:0], time.RFC3339Nano)))
	}
}

func (w *writer) position(p waybill.Position) {
	if p != (waybill.Position{}) {
		var room [64]byte
		text := strconv.AppendInt(room[:0], int64(p.Lane), 10)
		text = strconv.AppendInt(append(text, '/'), p.Epoch, 10)
		text = strconv.AppendInt(append(text, '/'), p.Seq, 10)
		w.attr(attrPosition, w.keep(text))
	}
}

// keep returns text as a part of the shared memory.
func (w *writer) keep(text []byte) string {
	start := w.text.Len()
	w.text.Write(text)
	return w.text.String()[start:]
}

// plain adds a header that is not an attribute. The header is omitted if the
// protocol cannot carry its value unescaped.
func (w *writer) plain(name, value string) {
	w.check(name, value)
	if w.rules.ascii && escape(value, func(c byte) bool { return c >= ' ' && c < 0x7f }) != value {
		return
	}
	w.headers = append(w.headers, Header{name, value})
}

// user adds the event's own headers in alphabetical order, so that an event
// always results in the same message.
func (w *writer) user(headers map[string]string) {
	if len(headers) == 0 {
		return
	}
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		value := headers[name]
		if (name == attrTraceParent || name == attrTraceState) && value != "" {
			w.attr(name, value)
			w.plain(name, value)
			continue
		}
		w.check("a header name", name)
		w.check("a header value", value)
		w.headers = append(w.headers, Header{w.rules.userName(name), w.rules.value(value)})
	}
}

// check rejects values that could end a header and begin another one. The
// outbox rejects such values too, but an event may come from elsewhere.
func (w *writer) check(what, value string) {
	if w.bad == "" && !clean(value) {
		w.bad = what
	}
}

func clean(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 })
		}
	}
	return true
}
