package broker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
)

// structuredJSON is the content type of a CloudEvents message in structured
// mode: attributes and data are one JSON object.
const structuredJSON = "application/cloudevents+json"

// attrHeaders is the attribute that holds the event's own headers in structured
// mode, as the text of a JSON object. The headers cannot be attributes
// themselves: attribute names are lower-case letters and digits.
const attrHeaders = "waybillheaders"

// IsStructured reports whether a content type denotes a CloudEvents message in
// structured mode.
func IsStructured(contentType string) bool { return media(contentType) == structuredJSON }

// EncodeStructured returns the message for a delivery in structured mode: the
// payload is one JSON object that holds the attributes, the event's own headers
// and the data, so that a signature of the payload covers all of them. The only
// headers are the content type and the W3C trace context, for intermediaries
// that do not parse the payload. [Codec.Decode] reads the message. Errors are
// permanent.
//
// A JSON payload is the member "data", byte for byte. Any other payload, and
// JSON that would not survive inside other JSON, is "data_base64". The event's
// own headers are the attribute "waybillheaders": the text of a JSON object.
func (c *Codec) EncodeStructured(d *waybill.Delivery) (Message, error) {
	m, err := c.Encode(d) // validates everything; the headers are rebuilt below
	if err != nil {
		return Message{}, err
	}
	var text strings.Builder
	w := writer{rules: &rules{}, names: plainNames, text: &text}
	w.event(d, d.ID.String(), c.eventSource)
	own := make(map[string]string, len(d.Headers))
	var plain []Header
	for name, value := range d.Headers {
		if (name == attrTraceParent || name == attrTraceState) && value != "" {
			w.attr(name, value)
			plain = append(plain, Header{name, value})
			continue
		}
		own[name] = value
	}
	w.attr(attrContentType, m.ContentType)
	if len(own) > 0 {
		w.attr(attrHeaders, string(quoted(own)))
	}
	body := make([]byte, 0, len(d.Payload)*4/3+1024)
	for i, h := range w.headers {
		body = append(append(append(append(body, "{,"[min(i, 1)]), quoted(h.Name)...), ':'), quoted(h.Value)...)
	}
	switch {
	case len(d.Payload) == 0:
	case embeds(m.ContentType, d.Payload):
		body = append(append(body, `,"data":`...), d.Payload...)
	default:
		body = base64.StdEncoding.AppendEncode(append(body, `,"data_base64":"`...), d.Payload)
		body = append(body, '"')
	}
	m.Payload, m.ContentType = append(body, '}'), structuredJSON
	m.Headers = nil
	if c.rules.contentType != "" {
		m.Headers = append(m.Headers, Header{c.rules.contentType, structuredJSON})
	}
	for _, h := range plain {
		w := writer{rules: &c.rules, headers: m.Headers}
		w.plain(h.Name, h.Value)
		m.Headers = w.headers
	}
	return m, nil
}

// plainNames maps the attributes to their names in structured mode.
var plainNames = func() map[string]string { //nolint:gochecknoglobals // never changed
	names := map[string]string{attrContentType: attrContentType, attrHeaders: attrHeaders}
	for _, name := range attributes {
		names[name] = name
	}
	return names
}()

// quoted returns a string, or a map of strings in alphabetical order, as JSON.
// Neither can fail.
func quoted(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}

// embeds reports whether a payload can be embedded in other JSON and extracted
// unchanged.
func embeds(contentType string, payload []byte) bool {
	return isJSON(contentType) && utf8.Valid(payload) && json.Valid(payload) && len(bytes.TrimSpace(payload)) == len(payload)
}

// isJSON reports whether a content type is JSON. An empty content type is JSON
// by CloudEvents' rules.
func isJSON(contentType string) bool {
	m := media(contentType)
	return m == "" || m == "application/json" || len(m) > 5 && strings.HasSuffix(m, "+json")
}

// structured decodes a message in structured mode. Its attributes replace those
// of the headers.
func (in *input) structured(body []byte) error {
	if len(body) > maxBody {
		return fmt.Errorf("%d bytes of structured content, at most %d", len(body), maxBody)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		// The parser's error may quote the payload.
		return errors.New("structured content is not a JSON object")
	}
	if len(members) > maxHeaderCount {
		return fmt.Errorf("%d members, at most %d", len(members), maxHeaderCount)
	}
	in.attrs = make(map[string]string, len(members))
	for name, raw := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		value, err := scalar(raw)
		if err != nil {
			return errors.New("attribute is not a string, number or boolean")
		}
		if value != "" {
			in.attrs[name] = value
		}
	}
	in.contentType = in.attrs[attrContentType]
	var own map[string]string
	if text := in.attrs[attrHeaders]; text != "" && json.Unmarshal([]byte(text), &own) == nil {
		delete(in.attrs, attrHeaders)
		in.headers = own // replaces all headers, like the attributes
	}
	return in.data(members)
}

// data extracts the payload of a structured message.
func (in *input) data(members map[string]json.RawMessage) error {
	in.payload = nil
	raw, plain := members["data"]
	encoded, binary := members["data_base64"]
	switch {
	case plain && binary:
		return errors.New("both data and data_base64")
	case binary:
		if err := json.Unmarshal(encoded, &in.payload); err != nil {
			return errors.New("data_base64 is not base64")
		}
	case plain && !in.textual(raw):
		in.payload = bytes.Clone(raw)
	case plain:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return errors.New("data is not a string")
		}
		in.payload = []byte(text)
	}
	return nil
}

// textual reports whether data is literal text: a JSON string whose content
// type is not JSON.
func (in *input) textual(raw json.RawMessage) bool {
	return !isJSON(in.contentType) && len(raw) > 0 && raw[0] == '"'
}

// scalar returns the text of an attribute; null is empty.
func scalar(raw json.RawMessage) (string, error) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return "", err
	}
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case bool:
		if v {
			return "true", nil
		}
		return "false", nil
	case json.Number:
		return v.String(), nil
	}
	return "", errors.New("not a scalar")
}
