package broker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill"
)

// Topics returns the topic of an event. The function is called often and
// concurrently, must not block, and must return the same topic for the same
// event every time. An event for which Topics returns an error or an empty
// topic is dead-lettered.
type Topics func(ev *waybill.Event) (string, error)

// OneTopic sends every event to the same topic.
func OneTopic(name string) Topics {
	return func(*waybill.Event) (string, error) { return name, nil }
}

// ownTopic returns the event's own topic.
func ownTopic(ev *waybill.Event) (string, error) {
	if ev.Topic == "" {
		return ev.Type, nil
	}
	return ev.Topic, nil
}

// TopicRules describes the topic names that a protocol permits.
type TopicRules struct {
	// Allowed reports whether a byte may be part of a name. Nil: every
	// printable ASCII character except the space.
	Allowed func(c byte) bool
	// Separator divides a name into parts, as '.' does in NATS. A tenant or an
	// aggregate type must not contain the separator, because otherwise one
	// tenant could publish into the topics of another. Zero: no separator.
	Separator byte
	// Max is the maximum length of a name, in bytes. Zero: 255.
	Max int
}

// Check returns an error if the name is not valid.
func (n TopicRules) Check(name string) error {
	limit := n.Max
	if limit == 0 {
		limit = 255
	}
	switch {
	case name == "":
		return errNoTopic
	case len(name) > limit:
		return fmt.Errorf("%d bytes, at most %d", len(name), limit)
	}
	for i := range len(name) {
		if !n.allows(name[i]) {
			return fmt.Errorf("%q has an invalid character", name)
		}
	}
	if n.Separator != 0 {
		for part := range strings.SplitSeq(name, string(n.Separator)) {
			if part == "" {
				return fmt.Errorf("%q has an empty part", name)
			}
		}
	}
	return nil
}

func (n TopicRules) allows(c byte) bool {
	if n.Allowed == nil {
		return c > ' ' && c < 0x7f
	}
	return n.Allowed(c)
}

// Checked returns topics that check every name; nil topics are the events' own.
func (n TopicRules) Checked(t Topics) Topics {
	if t == nil {
		t = ownTopic
	}
	return func(ev *waybill.Event) (string, error) {
		name, err := t(ev)
		if err == nil {
			err = n.Check(name)
		}
		if err != nil {
			return "", err
		}
		return name, nil
	}
}

// Template returns topics for a pattern such as "orders.{type}". Its fields are
// {topic}, {type}, {aggregatetype} and {tenant}. {tenant:none} sets the text
// for an empty field. Every name is checked; fields other than topic and type
// must not contain the separator.
func (n TopicRules) Template(pattern string) (Topics, error) {
	parts, err := parseTemplate(pattern)
	if err != nil {
		return nil, fmt.Errorf("broker: topic template %q: %w", pattern, err)
	}
	for _, p := range parts {
		for i := range len(p.text) {
			if !n.allows(p.text[i]) {
				return nil, fmt.Errorf("broker: topic template %q: %q has an invalid character", pattern, p.text)
			}
		}
	}
	return n.Checked(func(ev *waybill.Event) (string, error) {
		var b strings.Builder
		for _, p := range parts {
			value := p.value(ev)
			if n.Separator != 0 && p.isolated() && strings.IndexByte(value, n.Separator) >= 0 {
				return "", fmt.Errorf("the event's %s contains %q, which divides names", p.field, n.Separator)
			}
			b.WriteString(value)
		}
		return b.String(), nil
	}), nil
}

// templatePart is a part of a pattern: a field, with the text for an empty
// value, or plain text.
type templatePart struct{ field, text string }

func (p templatePart) value(ev *waybill.Event) string {
	value := ""
	switch p.field {
	case "topic":
		value, _ = ownTopic(ev)
	case "type":
		value = ev.Type
	case "aggregatetype":
		value = ev.AggregateType
	case "tenant":
		value = ev.TenantID
	}
	if value == "" {
		return p.text
	}
	return value
}

func (p templatePart) isolated() bool { return p.field == "tenant" || p.field == "aggregatetype" }

func parseTemplate(pattern string) ([]templatePart, error) {
	if pattern == "" {
		return nil, errNoTopic
	}
	var parts []templatePart
	for rest := pattern; rest != ""; {
		open := strings.IndexByte(rest, '{')
		if open < 0 {
			open = len(rest)
		}
		if text := rest[:open]; text != "" {
			if strings.IndexByte(text, '}') >= 0 {
				return nil, errors.New("} without {")
			}
			parts = append(parts, templatePart{text: text})
		}
		if rest = rest[open:]; rest == "" {
			break
		}
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			return nil, errors.New("{ without }")
		}
		field, fallback, _ := strings.Cut(rest[1:end], ":")
		switch field {
		case "topic", "type", "aggregatetype", "tenant":
		default:
			return nil, fmt.Errorf("unknown field {%s}: want topic, type, aggregatetype or tenant", field)
		}
		parts = append(parts, templatePart{field: field, text: fallback})
		rest = rest[end+1:]
	}
	return parts, nil
}
