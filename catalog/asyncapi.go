package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/jsontext"
)

// The places of a document that references point to.
const (
	componentRef = "#/components/schemas/"
	messageRef   = "#/components/messages/"
)

// document is the part of an AsyncAPI document that a catalog has.
type document struct {
	AsyncAPI           string               `json:"asyncapi"`
	Info               info                 `json:"info"`
	DefaultContentType string               `json:"defaultContentType"`
	Channels           map[string]channel   `json:"channels"`
	Operations         map[string]operation `json:"operations"`
	Components         components           `json:"components"`
}

type info struct {
	Title       string `json:"title"`
	Version     string `json:"version"`
	Description string `json:"description,omitempty"`
}

type reference struct {
	Ref string `json:"$ref"`
}

// channel is a topic.
type channel struct {
	Address  string               `json:"address"`
	Messages map[string]reference `json:"messages"`
}

type operation struct {
	Action   string      `json:"action"`
	Channel  reference   `json:"channel"`
	Messages []reference `json:"messages"`
}

type components struct {
	Messages map[string]message `json:"messages"`
	Schemas  map[string]schema  `json:"schemas,omitempty"`
}

// message is an event type.
type message struct {
	Name        string    `json:"name"`
	ContentType string    `json:"contentType"`
	Payload     schema    `json:"payload,omitzero"`
	Waybill     extension `json:"x-waybill"`
}

// extension holds what AsyncAPI has no place for.
type extension struct {
	AggregateType string `json:"aggregateType"`
	SchemaID      string `json:"schemaId,omitempty"`
	SchemaVersion int    `json:"schemaVersion"`
}

// Write writes the catalog as an AsyncAPI 3.0 document. The same definitions
// always produce the same bytes.
func (c *Catalog) Write(to io.Writer) error {
	d := document{
		AsyncAPI: "3.0.0", Info: c.info, DefaultContentType: waybill.JSON,
		Channels: map[string]channel{}, Operations: map[string]operation{},
		Components: components{Messages: map[string]message{}, Schemas: c.components},
	}
	names, channels := map[string]bool{}, map[string]bool{}
	topics := map[string]string{} // their keys
	for _, t := range c.types {
		name := unique(key(t.Name), names)
		d.Components.Messages[name] = message{
			Name: t.Name, ContentType: t.ContentType, Payload: t.payload, Waybill: extension{t.AggregateType, t.SchemaID, t.SchemaVersion},
		}
		at, ok := topics[t.Topic]
		if !ok {
			at = unique(key(t.Topic), channels)
			topics[t.Topic] = at
			d.Channels[at] = channel{t.Topic, map[string]reference{}}
		}
		d.Channels[at].Messages[name] = reference{messageRef + name}
		send := d.Operations["send."+at]
		send.Action, send.Channel = "send", reference{"#/channels/" + at}
		send.Messages = append(send.Messages, reference{"#/channels/" + at + "/messages/" + name})
		d.Operations["send."+at] = send
	}
	if _, err := to.Write(encode(d)); err != nil {
		return fmt.Errorf("catalog: write: %w", err)
	}
	return nil
}

// encode returns v as JSON for readers. The values of this package have a JSON
// form.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// decode reads one JSON value. Numbers keep their text.
func decode(text []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the end")
	}
	return nil
}

// Read reads a document that [Catalog.Write] wrote.
func Read(from io.Reader) (*Catalog, error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("catalog: read: %w", err)
	}
	var d document
	if err := decode(text, &d); err != nil {
		return nil, fmt.Errorf("catalog: read: not a catalog: %w", err)
	}
	if !strings.HasPrefix(d.AsyncAPI, "3.") {
		return nil, fmt.Errorf("catalog: read: not a catalog: asyncapi is %q, want 3.0.0", d.AsyncAPI)
	}
	topics := map[string]string{}
	for _, ch := range d.Channels {
		for _, m := range ch.Messages {
			topics[strings.TrimPrefix(m.Ref, messageRef)] = ch.Address
		}
	}
	c := &Catalog{info: d.Info, components: d.Components.Schemas}
	for _, name := range slices.Sorted(maps.Keys(d.Components.Messages)) {
		m := d.Components.Messages[name]
		t := EventType{
			Name: cmp.Or(m.Name, name), AggregateType: cmp.Or(m.Waybill.AggregateType, waybill.GlobalAggregate), Topic: topics[name],
			ContentType: cmp.Or(m.ContentType, d.DefaultContentType, waybill.JSON), SchemaID: m.Waybill.SchemaID,
			SchemaVersion: max(m.Waybill.SchemaVersion, 1), payload: m.Payload,
		}
		t.Topic = cmp.Or(t.Topic, t.Name)
		if t.payload == nil && jsontext.IsType(t.ContentType) {
			t.payload = schema{}
		}
		if c.find(t.AggregateType, t.Name) != nil {
			return nil, fmt.Errorf("catalog: read: event %s of %s is there twice", t.Name, t.AggregateType)
		}
		if missing := c.missing(t.payload); missing != "" {
			return nil, fmt.Errorf("catalog: read: event %s: the schema %s is missing", t.Name, missing)
		}
		c.types = append(c.types, t)
	}
	for name, s := range c.components {
		if missing := c.missing(s); missing != "" {
			return nil, fmt.Errorf("catalog: read: schema %s: the schema %s is missing", name, missing)
		}
	}
	c.sort()
	return c, nil
}

// missing returns a reference in a schema that leads nowhere, or "".
func (c *Catalog) missing(v any) string {
	switch v := v.(type) {
	case schema:
		if ref, ok := v["$ref"].(string); ok && c.component(ref) == nil {
			return ref
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if ref := c.missing(v[name]); ref != "" {
				return ref
			}
		}
	case []any:
		for _, inner := range v {
			if ref := c.missing(inner); ref != "" {
				return ref
			}
		}
	}
	return ""
}

// component returns the schema that a reference points to, or nil.
func (c *Catalog) component(ref string) schema {
	name, ok := strings.CutPrefix(ref, componentRef)
	if !ok {
		return nil
	}
	return c.components[name]
}

// standalone returns a copy of a schema whose references point to $defs, and
// puts the components that it uses into defs.
func (c *Catalog) standalone(s schema, defs map[string]schema) schema {
	return c.copied(s, defs).(schema)
}

func (c *Catalog) copied(v any, defs map[string]schema) any {
	switch v := v.(type) {
	case schema:
		out := schema{}
		for name, inner := range v {
			out[name] = c.copied(inner, defs)
		}
		if ref, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, componentRef)
			out["$ref"] = "#/$defs/" + name
			if _, done := defs[name]; !done {
				defs[name] = nil // for recursive types
				defs[name] = c.standalone(c.component(ref), defs)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, inner := range v {
			out[i] = c.copied(inner, defs)
		}
		return out
	default:
		return v
	}
}
