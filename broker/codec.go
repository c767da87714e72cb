package broker

import (
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/message"
)

// The attributes of CloudEvents 1.0 and Waybill's extension attributes.
// Attributes without a value are omitted.
const (
	attrID          = "id"          // Event.ID
	attrSource      = "source"      // CodecConfig.EventSource
	attrSpecVersion = "specversion" // 1.0
	attrType        = "type"        // Event.Type
	attrSubject     = "subject"     // Event.AggregateID
	attrTime        = "time"        // Event.OccurredAt, RFC 3339
	attrSchema      = "dataschema"  // Event.SchemaID
	attrContentType = "datacontenttype"
	attrTraceParent = "traceparent" // the header of that name; "distributed tracing" extension
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
	attrTopic         = "topic" // Event.Topic, if it differs from the type
	attrRoutingKey    = "routingkey"
	attrAvailable     = "availableat" // RFC 3339
)

// attributes lists all attributes that the codec writes.
var attributes = [...]string{ //nolint:gochecknoglobals // never changed
	attrID, attrSource, attrSpecVersion, attrType, attrSubject, attrTime, attrSchema, attrTraceParent, attrTraceState, attrTenant, attrAggregateType, attrAggregateID,
	attrPosition, attrReplay, attrCorrelation, attrCausation, attrSchemaVersion, attrDedup, attrPriority, attrTopic, attrRoutingKey, attrAvailable,
}

const specVersion = "1.0"

// CodecConfig configures a [Codec]. The zero value is valid.
type CodecConfig struct {
	// EventSource is the CloudEvents attribute source: the producer of the
	// event, as a URI reference. Defaults to "waybill".
	EventSource string
	// Topics returns the topic of an event. Defaults to the event's Topic.
	Topics Topics
}

// Codec encodes events as messages of one protocol and decodes them. A Codec is
// safe for concurrent use.
//
// The CloudEvents attributes are id, source, specversion, type, subject (the
// aggregate id), time, datacontenttype and dataschema (the SchemaID). Waybill's
// fields are extension attributes: tenantid, aggregatetype, aggregateid,
// position ("lane/epoch/seq"), replay, correlationid, causationid,
// schemaversion, dedupkey, priority, topic (if it differs from the type),
// routingkey and availableat. The event's headers traceparent and tracestate
// are attributes, as in the distributed tracing extension, and also plain
// headers, because tracing libraries read those. The names of all other headers
// of the event get the binding's prefix, so that they cannot be mistaken for
// attributes or protocol headers.
//
// The codec also decodes events of other CloudEvents producers: unknown
// attributes become headers, and subject is the aggregate id. An id that is not
// a Waybill id is replaced by the first 16 bytes of the SHA-256 of source and
// id; the headers ce_source and ce_id hold the original values. The codec
// decodes the structured JSON form as well.
type Codec struct {
	binding Binding
	rules   rules
	names   map[string]string // header names of the attributes, built once
	topics  Topics

	eventSource string
}

// NewCodec returns the codec of a protocol.
func NewCodec(b Binding, cfg CodecConfig) (*Codec, error) {
	r, ok := b.rules()
	if !ok {
		return nil, fmt.Errorf("broker: unknown %v", b)
	}
	if err := message.CheckEventSource(cfg.EventSource); err != nil {
		return nil, fmt.Errorf("broker: CodecConfig.EventSource: %w", err)
	}
	if cfg.EventSource == "" {
		cfg.EventSource = "waybill"
	}
	if cfg.Topics == nil {
		cfg.Topics = ownTopic
	}
	names := make(map[string]string, len(attributes))
	for _, name := range attributes {
		names[name] = r.prefix + name
	}
	return &Codec{binding: b, rules: r, names: names, eventSource: cfg.EventSource, topics: cfg.Topics}, nil
}

// Binding returns the binding of the codec.
func (c *Codec) Binding() Binding { return c.binding }

// Topic returns the topic of an event. Errors are permanent.
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
