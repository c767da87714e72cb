package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// structuredJSON is the content type of a CloudEvents message in structured mode: attributes and data are one JSON object.
const structuredJSON = "application/cloudevents+json"

// structured reads a message in structured mode. Its attributes replace what the headers say.
func (in *input) structured(body []byte) error {
	if len(body) > maxBody {
		return fmt.Errorf("%d bytes of structured content, at most %d", len(body), maxBody)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return errors.New("structured content that is not a JSON object") // the parser's error may quote the payload
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
			return errors.New("an attribute that is neither text, number nor boolean")
		}
		if value != "" {
			in.attrs[name] = value
		}
	}
	in.contentType = in.attrs[attrContentType]
	return in.data(members)
}

// data takes the payload out of a structured message.
func (in *input) data(members map[string]json.RawMessage) error {
	in.payload = nil
	raw, plain := members["data"]
	encoded, binary := members["data_base64"]
	switch {
	case plain && binary:
		return errors.New("both data and data_base64")
	case binary:
		if err := json.Unmarshal(encoded, &in.payload); err != nil {
			return errors.New("data_base64 that is not base 64")
		}
	case plain && !in.textual(raw):
		in.payload = bytes.Clone(raw)
	case plain:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return errors.New("data that is not text")
		}
		in.payload = []byte(text)
	}
	return nil
}

// textual reports whether data is a text that stands for itself: a JSON string where the content is not JSON.
func (in *input) textual(raw json.RawMessage) bool {
	m := media(in.contentType)
	isJSON := m == "" || m == "application/json" || len(m) > 5 && m[len(m)-5:] == "+json"
	return !isJSON && len(raw) > 0 && raw[0] == '"'
}

// scalar returns the text of an attribute; null is none.
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
