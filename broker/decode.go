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
)

// ErrMessage says that a message cannot be read as an event. It comes with class Dead: the message belongs to the dead-letter destination.
var ErrMessage = errors.New("broker: not a readable message")

// The bounds of what is read at all; what an event may hold is less.
const (
	maxHeaderCount = 256
	maxHeaderBytes = 64 << 10
	maxBody        = 4 << 20 // a structured message holds its payload in base 64, and the attributes
)

// Decode returns the event of a message, as a delivery: its replay number and position are those it was published with, its Attempt is 1 and
// the claim has no token, so that nobody can settle it. The payload is shared with the message. Every error is [ErrMessage], of class Dead,
// and contains neither payload nor header values.
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

// input is what a message says, whatever its form.
type input struct {
	attrs       map[string]string
	headers     map[string]string
	contentType string
	payload     []byte
}

// read sorts the headers of a message into attributes and the event's own.
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

// bounded reports headers that no reader would take, and that some brokers would end the connection
// for.
func bounded(m *Message) error {
	if len(m.Headers) > maxHeaderCount {
		return fmt.Errorf("%d headers, at most %d", len(m.Headers), maxHeaderCount)
	}
	if n := m.Size() - len(m.Payload); n > maxHeaderBytes {
		return fmt.Errorf("%d bytes of headers, at most %d", n, maxHeaderBytes)
	}
	return nil
}

// sort puts one header where it belongs. A name that comes twice with two values is refused: readers would not agree which counts.
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
			return nil // other plain headers are the protocol's, or a foreign library's
		}
	}
	if r.ascii && into != &plain {
		value = unquote(value)
	}
	if old, twice := (*into)[what]; twice && old != value {
		return errors.New("a header comes twice with two values")
	}
	(*into)[what] = value
	return nil
}

// attribute returns the attribute that a header carries. HTTP and NATS have clients that change the case of names.
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

// unquote reads a value as the HTTP binding of CloudEvents says: a quoted string is unquoted, then percent signs are decoded.
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

// delivery makes the event, and checks it as a write would.
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
		// The hash stands for both: an id is unique only together with its source.
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
	d.Payload = nil // Complete copies it, and a source has no other use for the message's
	d.Event = d.Complete()
	if d.Payload = payload; payload == nil {
		d.Payload = []byte{}
	}
	if err := d.Validate(); err != nil {
		return d, err
	}
	return d, nil
}

// fields sets the event's fields from the attributes. What it does not know, or cannot read, becomes a header.
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
	if id := in.attrs[attrAggregateID]; id != "" { // the map has no order, and the subject is only the second choice
		d.AggregateID = id
	}
	d.Claim = waybill.NewClaim(p, waybill.ID{})
}

// keep adds a header unless the event has one of that name itself.
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
