package broker

import (
	"errors"
	"fmt"
	"strings"

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
var attributes = [...]string{ //nolint:gochecknoglobals // never changed
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
