package broker

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// ErrMessage reports a message that cannot be decoded as an event. The error is
// permanent: the message belongs in the dead-letter destination.
var ErrMessage = errors.New("broker: message cannot be decoded")

// Limits of a message that is decoded at all. The limits of an event are lower.
const (
	maxHeaderCount = 256
	maxHeaderBytes = 64 << 10
	maxBody        = 4 << 20 // a structured message holds attributes and a base64 payload
)

// Decode returns the event of a message as a delivery. The replay number and
// the position are those of the publication, Attempt is 1, and the claim has no
// token, so the delivery cannot be settled. The payload is shared with the
// message. Every error wraps [ErrMessage], is permanent, and contains neither
// payload nor header values.
func (c *Codec) Decode(m *Message) (waybill.Delivery, error) {
	d, err := c.decode(m)
	if err != nil {
		return waybill.Delivery{}, waybill.Permanent(fmt.Errorf("%w: %w", ErrMessage, err))
	}
	return d, nil
}

func (c *Codec) decode(m *Message) (waybill.Delivery, error) {
	in, err := c.read(m)
	if err != nil {
		return waybill.Delivery{}, err
	}
	if IsStructured(in.contentType) {
		if err := in.structured(m.Payload); err != nil {
			return waybill.Delivery{}, err
		}
	}
	return in.delivery()
}

// input is the content of a message, independent of its form.
type input struct {
	attrs       map[string]string
	headers     map[string]string
	contentType string
	payload     []byte
}

// read separates the headers of a message into attributes and the event's own
// headers.
func (c *Codec) read(m *Message) (*input, error) {
	if err := bounded(m); err != nil {
		return nil, err
	}
	in := &input{attrs: make(map[string]string, len(m.Headers)), contentType: m.ContentType, payload: m.Payload}
	plain := make(map[string]string, 3)
	for _, h := range m.Headers {
		if err := in.sort(&c.rules, h, plain); err != nil {
			return nil, err
		}
	}
	if in.contentType == "" {
		in.contentType = plain["content-type"]
	}
	if in.contentType == "" {
		in.contentType = in.attrs[attrContentType]
	}
	for _, name := range []string{attrTraceParent, attrTraceState} {
		if in.attrs[name] == "" && plain[name] != "" {
			in.attrs[name] = plain[name]
		}
	}
	return in, nil
}

// bounded rejects headers that no reader would accept and for which some
// brokers would close the connection.
func bounded(m *Message) error {
	if len(m.Headers) > maxHeaderCount {
		return fmt.Errorf("%d headers, at most %d", len(m.Headers), maxHeaderCount)
	}
	if n := m.Size() - len(m.Payload); n > maxHeaderBytes {
		return fmt.Errorf("%d bytes of headers, at most %d", n, maxHeaderBytes)
	}
	return nil
}

// sort stores one header where it belongs. A name with two different values is
// rejected, because readers would disagree about which value counts.
func (in *input) sort(r *rules, h Header, plain map[string]string) error {
	name := h.Name
	if r.noCase {
		name = strings.ToLower(name)
	}
	into, what := &plain, ""
	value := h.Value
	if attr, ok := r.attribute(name); ok {
		into, what = &in.attrs, attr
	} else if user, ok := strings.CutPrefix(name, r.user); ok && user != "" {
		if in.headers == nil {
			in.headers = make(map[string]string)
		}
		into, what = &in.headers, user
		if r.ascii {
			what = unescape(user)
		}
	} else {
		what = strings.ToLower(name)
		if what != "content-type" && what != attrTraceParent && what != attrTraceState {
			return nil // other plain headers belong to the protocol or another library
		}
	}
	if r.ascii && into != &plain {
		value = unquote(value)
	}
	if old, twice := (*into)[what]; twice && old != value {
		return errors.New("duplicate header with different values")
	}
	(*into)[what] = value
	return nil
}

// attribute returns the attribute that a header carries. Some HTTP and NATS
// clients change the case of names.
func (r *rules) attribute(name string) (string, bool) {
	for _, prefix := range []string{r.prefix, r.also} {
		if prefix == "" || len(name) <= len(prefix) {
			continue
		}
		if r.ascii && strings.EqualFold(name[:len(prefix)], prefix) {
			return strings.ToLower(name[len(prefix):]), true
		}
		if strings.HasPrefix(name, prefix) {
			return name[len(prefix):], true
		}
	}
	return "", false
}

// unquote decodes a value as the CloudEvents HTTP binding requires: a quoted
// string is unquoted, then percent signs are decoded.
func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		inner := s[1 : len(s)-1]
		var b strings.Builder
		for i := 0; i < len(inner); i++ {
			if inner[i] == '\\' && i+1 < len(inner) {
				i++
			}
			b.WriteByte(inner[i])
		}
		s = b.String()
	}
	return unescape(s)
}

// delivery builds the event and validates it like a write.
func (in *input) delivery() (waybill.Delivery, error) {
	d := waybill.Delivery{Attempt: 1}
	if v := in.attrs[attrSpecVersion]; !strings.HasPrefix(v, "1.") {
		return d, errors.New("the attribute specversion is not 1.0: not a CloudEvents message")
	}
	id := in.attrs[attrID]
	if id == "" {
		return d, errors.New("no id")
	}
	parsed, err := waybill.ParseID(id)
	if err != nil || parsed.IsZero() {
		// The hash covers both, because an id is unique only within its source.
		sum := sha256.Sum256([]byte(in.attrs[attrSource] + "\x00" + id))
		parsed = waybill.ID(sum[:16])
		in.keep("ce_id", id)
		in.keep("ce_source", in.attrs[attrSource])
	}
	d.ID, d.Payload, d.ContentType = parsed, in.payload, in.contentType
	if d.ContentType == "" && !json.Valid(in.payload) {
		d.ContentType = "application/octet-stream"
	}
	in.fields(&d)
	d.Headers = in.headers
	payload := d.Payload
	d.Payload = nil // Complete copies it; a source needs only one copy
	d.Event = eventfill.Defaults(d.Event)
	if d.Payload = payload; payload == nil {
		d.Payload = []byte{}
	}
	if err := d.Validate(); err != nil {
		return d, err
	}
	return d, nil
}

// fields sets the event's fields from the attributes. Unknown attributes and
// unreadable values become headers.
func (in *input) fields(d *waybill.Delivery) {
	d.AggregateID = in.attrs[attrSubject]
	var p waybill.Position
	for name, value := range in.attrs {
		ok := true
		switch name {
		case attrID, attrSource, attrSpecVersion, attrSubject, attrContentType:
		case attrType:
			d.Type = value
		case attrTime:
			d.OccurredAt, ok = parseTime(value)
		case attrSchema:
			d.SchemaID = value
		case attrTenant:
			d.TenantID = value
		case attrAggregateType:
			d.AggregateType = value
		case attrAggregateID:
			d.AggregateID = value
		case attrPosition:
			p, ok = parsePosition(value)
		case attrReplay:
			d.Replay, ok = parseNumber(value)
		case attrCorrelation:
			d.CorrelationID = value
		case attrCausation:
			d.CausationID = value
		case attrSchemaVersion:
			d.SchemaVersion, ok = parseNumber(value)
		case attrDedup:
			d.DedupKey = value
		case attrPriority:
			d.Priority, ok = parseNumber(value)
		case attrTopic:
			d.Topic = value
		case attrRoutingKey:
			d.RoutingKey = value
		case attrAvailable:
			d.AvailableAt, ok = parseTime(value)
		default:
			ok = false
		}
		if !ok {
			in.keep(name, value)
		}
	}
	// The map has no order, and the subject is only the second choice.
	if id := in.attrs[attrAggregateID]; id != "" {
		d.AggregateID = id
	}
	d.Position = p
}

// keep adds a header unless the event already has a header of that name.
func (in *input) keep(name, value string) {
	if in.headers == nil {
		in.headers = make(map[string]string)
	}
	if _, own := in.headers[name]; !own {
		in.headers[name] = value
	}
}

func parseTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, false
	}
	return t, true
}

func parseNumber(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, false
	}
	return int(n), true
}

func parsePosition(s string) (waybill.Position, bool) {
	lane, rest, _ := strings.Cut(s, "/")
	epoch, seq, _ := strings.Cut(rest, "/")
	l, err1 := strconv.ParseInt(lane, 10, 32)
	e, err2 := strconv.ParseInt(epoch, 10, 64)
	n, err3 := strconv.ParseInt(seq, 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || l < 0 || e < 0 || n < 0 {
		return waybill.Position{}, false
	}
	return waybill.Position{Lane: int(l), Epoch: e, Seq: n}, true
}

// media returns a content type without its parameters, in lower case.
func media(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(m))
}
