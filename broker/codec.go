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
)

// The attributes of CloudEvents 1.0, and Waybill's own beside them. Attributes without a value are left out.
const (
	attrID          = "id"          // Event.ID
	attrSource      = "source"      // CodecConfig.Source
	attrSpecVersion = "specversion" // 1.0
	attrType        = "type"        // Event.Type
	attrSubject     = "subject"     // Event.AggregateID
	attrTime        = "time"        // Event.OccurredAt, RFC 3339
	attrSchema      = "dataschema"  // Event.SchemaID
	attrContentType = "datacontenttype"
	attrTraceParent = "traceparent" // the header of that name: extension "distributed tracing"
	attrTraceState  = "tracestate"

	attrTenant        = "tenantid"
	attrAggregateType = "aggregatetype"
	attrAggregateID   = "aggregateid"
	attrPosition      = "position" // lane/epoch/seq
	attrReplay        = "replay"
	attrCorrelation   = "correlationid"
	attrCausation     = "causationid"
	attrSchemaVersion = "schemaversion"
	attrDedup         = "dedupkey"
	attrPriority      = "priority"
	attrTopic         = "topic" // Event.Topic, where it is not the type
	attrRoutingKey    = "routingkey"
	attrAvailable     = "availableat" // RFC 3339
)

// attributes is all that are written.
var attributes = []string{ //nolint:gochecknoglobals // never changed
	attrID, attrSource, attrSpecVersion, attrType, attrSubject, attrTime, attrSchema, attrTraceParent, attrTraceState, attrTenant, attrAggregateType, attrAggregateID,
	attrPosition, attrReplay, attrCorrelation, attrCausation, attrSchemaVersion, attrDedup, attrPriority, attrTopic, attrRoutingKey, attrAvailable,
}

const specVersion = "1.0"

// CodecConfig holds what may be tuned; its zero value is ready.
type CodecConfig struct {
	// Source is the CloudEvents attribute of that name: who produced the event, as a URI reference. Defaults to "waybill".
	Source string
	// Topics says where an event goes. Defaults to its Topic.
	Topics Topics
}

// Codec writes events as messages of one protocol, and reads them. It may be used concurrently.
//
// The attributes of CloudEvents are id, source, specversion, type, subject (the aggregate id), time, datacontenttype and dataschema
// (the SchemaID). Waybill's own are extension attributes: tenantid, aggregatetype, aggregateid, position ("lane/epoch/seq"), replay,
// correlationid, causationid, schemaversion, dedupkey, priority, topic (where it is not the type), routingkey and availableat. The
// event's headers traceparent and tracestate are attributes as in the distributed tracing extension, and plain headers as well, because
// that is where tracing libraries look. All other headers of the event have the prefix of the binding in front of their name,
// so that they can never pass for anything else.
//
// Events of other CloudEvents producers are read, too: attributes that are not known become headers, subject is the aggregate id, and an id
// that is not one of Waybill's becomes one: 16 bytes of the SHA-256 of source and id, which are kept in the headers ce_source and ce_id.
// The structured JSON form is read as well.
type Codec struct {
	binding Binding
	rules   rules
	names   map[string]string // the headers of attributes, so that they are not put together for every message
	source  string
	topics  Topics
}

// NewCodec returns the codec of a protocol.
func NewCodec(b Binding, cfg CodecConfig) (*Codec, error) {
	r, ok := b.rules()
	if !ok {
		return nil, fmt.Errorf("broker: unknown %v", b)
	}
	if cfg.Source == "" {
		cfg.Source = "waybill"
	}
	if len(cfg.Source) > maxSource || strings.ContainsFunc(cfg.Source, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return nil, fmt.Errorf("broker: field Source: want a URI reference of at most %d printable ASCII characters", maxSource)
	}
	if cfg.Topics == nil {
		cfg.Topics = ownTopic
	}
	names := make(map[string]string, len(attributes))
	for _, name := range attributes {
		names[name] = r.prefix + name
	}
	return &Codec{binding: b, rules: r, names: names, source: cfg.Source, topics: cfg.Topics}, nil
}

const maxSource = 512

// Binding returns the protocol's.
func (c *Codec) Binding() Binding { return c.binding }

// Topic returns where an event goes. An error is of class Dead: no other attempt ends differently.
func (c *Codec) Topic(ev *waybill.Event) (string, error) {
	topic, err := c.topics(ev)
	if err == nil && topic == "" {
		err = errNoTopic
	}
	if err != nil {
		return "", waybill.Permanent(fmt.Errorf("broker: topic of event %s: %w", ev.ID, err))
	}
	return topic, nil
}

var errNoTopic = errors.New("empty")

// Encode returns the message for a delivery. The payload is shared with the delivery, not copied. An error is of class Dead.
func (c *Codec) Encode(d *waybill.Delivery) (Message, error) {
	if d.ID.IsZero() {
		return Message{}, waybill.Permanent(errors.New("broker: the event has no id"))
	}
	topic, err := c.Topic(&d.Event)
	if err != nil {
		return Message{}, err
	}
	id := d.ID.String()
	m := Message{
		PublishID: publishID(id, d.Replay), ID: d.ID, Topic: topic, Key: messageKey(&d.Event), RoutingKey: d.RoutingKey,
		ContentType: d.ContentType, Payload: d.Payload,
	}
	if m.ContentType == "" {
		m.ContentType = waybill.JSON
	}
	w := writer{rules: &c.rules, names: c.names, headers: make([]Header, 0, 16+len(d.Headers))}
	w.event(d, id, c.source)
	if c.rules.contentType != "" {
		w.plain(c.rules.contentType, m.ContentType)
	}
	w.user(d.Headers)
	if w.bad != "" {
		return Message{}, waybill.Permanent(fmt.Errorf("broker: event %s: %s contains a control character or is not valid UTF-8", d.ID, w.bad))
	}
	m.Headers = w.headers
	return m, nil
}

// writer collects headers.
type writer struct {
	rules   *rules
	names   map[string]string // of [attributes]
	headers []Header
	bad     string // the first field that must not travel
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
	w.position(d.Claim.Position())
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
		w.attr(name, t.UTC().Format(time.RFC3339Nano))
	}
}

func (w *writer) position(p waybill.Position) {
	if p != (waybill.Position{}) {
		text := strconv.AppendInt(make([]byte, 0, 48), int64(p.Lane), 10)
		text = strconv.AppendInt(append(text, '/'), p.Epoch, 10)
		text = strconv.AppendInt(append(text, '/'), p.Seq, 10)
		w.attr(attrPosition, string(text))
	}
}

// plain adds a header that is no attribute. Its value is left out where the protocol cannot carry it as it is.
func (w *writer) plain(name, value string) {
	w.check(name, value)
	if w.rules.ascii && escape(value, func(c byte) bool { return c >= ' ' && c < 0x7f }) != value {
		return
	}
	w.headers = append(w.headers, Header{name, value})
}

// user adds the event's own headers, in alphabetical order, so that one event always makes the same message.
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
		w.check("the name of a header", name)
		w.check("a header", value)
		w.headers = append(w.headers, Header{w.rules.userName(name), w.rules.value(value)})
	}
}

// check refuses what could end a header and begin another. The outbox has refused it before; an event may come another way.
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
