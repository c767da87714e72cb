package catalog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/jsontext"
)

// Definition is a [waybill.Definition] of any payload.
type Definition interface {
	Type() string
	AggregateType() string
	Spec() waybill.Spec
	PayloadType() reflect.Type
}

// Config configures a catalog.
type Config struct {
	// Title names the service in the document. Required.
	Title string
	// Version is the version of the document. Defaults to "1.0.0".
	Version string
	// Description of the service, as Markdown. Defaults to none.
	Description string
	// Schemas are JSON Schemas for Go types, in place of the derived ones: for
	// types that implement [json.Marshaler], and for types of string with few
	// values. A schema has no $ref. By default a type with a MarshalJSON method
	// may be any value.
	Schemas map[reflect.Type]json.RawMessage
}

// Catalog holds the event types of a service. It does not change after [New] or
// [Read].
type Catalog struct {
	info       info
	types      []EventType
	components map[string]schema
}

// EventType describes the events of one definition.
type EventType struct {
	// Name is the event type.
	Name string
	// AggregateType is [waybill.GlobalAggregate] for events without aggregate.
	AggregateType string
	// Topic is the event type unless the definition has another topic.
	Topic string
	// ContentType of the payload.
	ContentType string
	// SchemaID names the payload's schema elsewhere, or is "".
	SchemaID string
	// SchemaVersion is at least 1.
	SchemaVersion int

	payload schema // nil: the payload is not JSON
}

// New returns the catalog of the definitions. It reports every definition with
// a payload type that encoding/json cannot encode.
func New(cfg Config, defs ...Definition) (*Catalog, error) {
	w, err := newWalker(cfg)
	errs := []error{err}
	c := &Catalog{info: info{Title: cfg.Title, Version: cmp.Or(cfg.Version, "1.0.0"), Description: cfg.Description}}
	for _, d := range defs {
		t, err := describe(w, d)
		if err == nil && c.find(t.AggregateType, t.Name) != nil {
			err = fmt.Errorf("event %s: defined twice for the aggregate type %s", t.Name, t.AggregateType)
		}
		errs = append(errs, err)
		c.types = append(c.types, t)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	c.components = w.finish(c.types)
	c.sort()
	return c, nil
}

// describe returns the event type of a definition.
func describe(w *walker, d Definition) (EventType, error) {
	if d == nil || d.Type() == "" {
		return EventType{}, errors.New("a definition was not made by Define")
	}
	spec := d.Spec()
	t := EventType{
		Name: d.Type(), AggregateType: d.AggregateType(), Topic: cmp.Or(spec.Topic, d.Type()),
		ContentType: cmp.Or(spec.ContentType, waybill.JSON), SchemaID: spec.SchemaID, SchemaVersion: max(spec.SchemaVersion, 1),
	}
	if !jsontext.IsType(t.ContentType) {
		return t, nil
	}
	var err error
	if t.payload, err = w.schema(d.PayloadType(), 0); err != nil {
		return t, fmt.Errorf("event %s: payload%w", t.Name, err)
	}
	return t, nil
}

// Types returns the event types, sorted by aggregate type and name.
func (c *Catalog) Types() []EventType { return slices.Clone(c.types) }

// Title returns the title of the document.
func (c *Catalog) Title() string { return c.info.Title }

// Schema returns the schema of a payload as a document of JSON Schema draft
// 2020-12, nil if the payload is not JSON.
func (c *Catalog) Schema(t EventType) json.RawMessage {
	if t.payload == nil {
		return nil
	}
	defs := map[string]schema{}
	root := c.standalone(t.payload, defs)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = t.Name
	if len(defs) > 0 {
		root["$defs"] = defs
	}
	return encode(root)
}

func (c *Catalog) find(aggregateType, name string) *EventType {
	for i := range c.types {
		if c.types[i].Name == name && c.types[i].AggregateType == aggregateType {
			return &c.types[i]
		}
	}
	return nil
}

func (c *Catalog) sort() {
	slices.SortFunc(c.types, func(a, b EventType) int {
		return cmp.Or(cmp.Compare(a.AggregateType, b.AggregateType), cmp.Compare(a.Name, b.Name))
	})
}
