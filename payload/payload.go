package payload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/internal/jsontext"
	"github.com/waybillhq/waybill/outbox"
)

const (
	// HeaderEncoding lists the transforms of a sealed payload in the order in
	// which they were applied, each with its parameters:
	// "gzip, aes-256-gcm key=2026-11".
	HeaderEncoding = "waybill-encoding"
	// HeaderContentType has the content type of the payload before it was
	// sealed.
	HeaderContentType = "waybill-content-type"
	// ContentType is the content type of a sealed payload.
	ContentType = "application/vnd.waybill.sealed"
)

// Transform changes payloads at the write and changes them back at the
// consumer. It must be safe for concurrent use and must not modify its
// arguments.
type Transform interface {
	// Name identifies the transform in [HeaderEncoding]: letters, digits and
	// dashes.
	Name() string
	// Seal returns the transformed data and the parameters that Open needs.
	// With ok == false the payload stays as it is.
	Seal(ctx context.Context, ev waybill.Event, data []byte) (sealed []byte, params Params, ok bool, err error)
	// Open returns the data that Seal received. Its error has the meaning of a
	// handler's error; see [waybill.Classify].
	Open(ctx context.Context, ev waybill.Event, params Params, sealed []byte) ([]byte, error)
}

// Params are the parameters of a transform. They are recorded with the event
// and are not secret.
type Params map[string]string

// Pipeline is a list of transforms. It is safe for concurrent use.
type Pipeline struct {
	transforms []Transform
	byName     map[string]Transform
}

// New returns a pipeline that applies the transforms in their order. Compress
// before encrypting: encrypted data does not compress.
func New(transforms ...Transform) (*Pipeline, error) {
	p := &Pipeline{byName: make(map[string]Transform, len(transforms))}
	for _, t := range transforms {
		if t == nil {
			return nil, errors.New("payload: a transform is nil")
		}
		name := t.Name()
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return nil, fmt.Errorf("payload: the name %q of a transform has characters other than a to z, 0 to 9 and dashes", name)
		}
		if p.byName[name] != nil {
			return nil, fmt.Errorf("payload: the transform %s is listed twice", name)
		}
		p.byName[name] = t
		p.transforms = append(p.transforms, t)
	}
	return p, nil
}

// Hook returns the hook that seals the payloads of an outbox. Put it last in
// [outbox.Config.Hooks]: hooks behind it see sealed payloads.
func (p *Pipeline) Hook() outbox.Hook {
	return outbox.Hook{BeforeWrite: func(ctx context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
		sealed := slices.Clone(info.Events)
		for i, ev := range sealed {
			var err error
			if sealed[i], err = p.Seal(ctx, ev); err != nil {
				return nil, err
			}
		}
		return sealed, nil
	}}
}

// Seal applies the transforms to the event's payload. An event that is sealed
// already stays as it is, so that a forwarded event is not sealed twice. The
// event needs its ID.
func (p *Pipeline) Seal(ctx context.Context, ev waybill.Event) (waybill.Event, error) {
	if _, sealed := ev.Headers[HeaderEncoding]; sealed {
		return ev, nil
	}
	if ev.ID.IsZero() {
		return ev, errors.New("payload: seal: the event has no id")
	}
	// The write cannot check a sealed payload.
	if jsontext.IsType(ev.ContentType) && !jsontext.Valid(ev.Payload) {
		return ev, fmt.Errorf("payload: seal %s: %w", ev.Type, &waybill.FieldError{Field: "Payload", Problem: "not valid JSON; set ContentType if it is something else"})
	}
	var applied []string
	data := ev.Payload
	for _, t := range p.transforms {
		out, params, ok, err := t.Seal(ctx, ev, data)
		if err != nil {
			return ev, fmt.Errorf("payload: seal %s with %s: %w", ev.Type, t.Name(), err)
		}
		if ok {
			data, applied = out, append(applied, entry(t.Name(), params))
		}
	}
	if len(applied) == 0 {
		return ev, nil
	}
	headers := maps.Clone(ev.Headers)
	if headers == nil {
		headers = make(map[string]string, 2)
	}
	headers[HeaderEncoding] = strings.Join(applied, ", ")
	if ev.ContentType != "" && ev.ContentType != waybill.JSON {
		headers[HeaderContentType] = ev.ContentType
	}
	ev.Headers, ev.ContentType, ev.Payload = headers, ContentType, data
	return ev, nil
}

// Open returns the event with the payload, the content type and the headers
// that it had before [Pipeline.Seal]. An event that is not sealed is returned
// unchanged.
func (p *Pipeline) Open(ctx context.Context, ev waybill.Event) (waybill.Event, error) {
	list, sealed := ev.Headers[HeaderEncoding]
	if !sealed {
		return ev, nil
	}
	data := ev.Payload
	for _, text := range slices.Backward(strings.Split(list, ",")) {
		name, params, err := parseEntry(text)
		if err != nil {
			return ev, waybill.Permanent(fmt.Errorf("payload: open %s %s: header %s: %w", ev.Type, ev.ID, HeaderEncoding, err))
		}
		t := p.byName[name]
		if t == nil {
			// Not permanent: the next release of the consumer may have it.
			return ev, fmt.Errorf("payload: open %s %s: this consumer has no transform %q; add it to the list of payload.New", ev.Type, ev.ID, name)
		}
		if data, err = t.Open(ctx, ev, params, data); err != nil {
			return ev, fmt.Errorf("payload: open %s %s with %s: %w", ev.Type, ev.ID, name, err)
		}
	}
	ev.Payload = data
	ev.ContentType = waybill.JSON
	if was, ok := ev.Headers[HeaderContentType]; ok {
		ev.ContentType = was
	}
	ev.Headers = maps.Clone(ev.Headers)
	delete(ev.Headers, HeaderEncoding)
	delete(ev.Headers, HeaderContentType)
	return ev, nil
}

// Middleware opens the payloads of the events that a [handler.Mux] handles. The
// delivery in the handler's context has the opened event, too.
func (p *Pipeline) Middleware(next handler.Func) handler.Func {
	return func(ctx context.Context, ev waybill.Event) error {
		opened, err := p.Open(ctx, ev)
		if err != nil {
			return err
		}
		if d, ok := waybill.DeliveryFrom(ctx); ok {
			d.Event = opened
			ctx = waybill.ContextWithDelivery(ctx, d)
		}
		return next(ctx, opened)
	}
}

// Sink returns a sink that opens payloads before it passes them to s, for
// receivers outside: a partner's webhook gets the plain payload. An event that
// cannot be opened fails, and s does not receive it. A batch has one event per
// aggregate, even if s accepts more.
func (p *Pipeline) Sink(s waybill.Sink) waybill.Sink { return &sink{p, s} }

type sink struct {
	pipeline *Pipeline
	next     waybill.Sink
}

// Deliver opens the events, and delivers those that could be opened.
func (s *sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	var opened []waybill.Delivery
	var at []int
	for i, d := range batch {
		ev, err := s.pipeline.Open(ctx, d.Event)
		if err != nil {
			results[i] = err
			continue
		}
		d.Event = ev
		opened, at = append(opened, d), append(at, i)
	}
	if len(opened) == 0 {
		return results
	}
	errs := s.next.Deliver(ctx, opened)
	if len(errs) != len(opened) {
		return errs // the relay reports the wrong number
	}
	for k, i := range at {
		results[i] = errs[k]
	}
	return results
}

// Destination returns the destination that the sink reports.
func (s *sink) Destination(ev *waybill.Event) string {
	if d, ok := s.next.(interface {
		Destination(ev *waybill.Event) string
	}); ok {
		return d.Destination(ev)
	}
	return ""
}

// entry is the text of a transform in the header: "name key=value".
func entry(name string, params Params) string {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		name += " " + key + "=" + url.QueryEscape(params[key])
	}
	return name
}

func parseEntry(text string) (name string, params Params, err error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return "", nil, errors.New("an entry is empty")
	}
	params = make(Params, len(words)-1)
	for _, word := range words[1:] {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return "", nil, fmt.Errorf("%q is not key=value", word)
		}
		if params[key], err = url.QueryUnescape(value); err != nil {
			return "", nil, fmt.Errorf("%q: %w", word, err)
		}
	}
	return words[0], params, nil
}
