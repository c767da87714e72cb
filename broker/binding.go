package broker

import (
	"fmt"
	"strings"
)

// Binding selects how a protocol carries attributes and headers.
type Binding int

// The bindings. HTTP, NATS, Kafka and AMQP follow the CloudEvents bindings.
// CloudEvents defines none for Pulsar and Redis; theirs look like Kafka's.
const (
	// HTTP: "ce-type", values in ASCII, user headers as "waybill-name". Names
	// are case-insensitive.
	HTTP Binding = iota + 1
	// NATS: "ce-type", values in ASCII, user headers as "waybill-name".
	NATS
	// Kafka: record headers "ce_type", values in UTF-8, user headers as
	// "waybill_name".
	Kafka
	// AMQP: application properties "cloudEvents:type", values in UTF-8, user
	// headers as "waybill:name". The content type is a message property.
	AMQP
	// Pulsar: message properties "ce_type", values in UTF-8, user headers as
	// "waybill_name".
	Pulsar
	// Redis: entry fields "ce_type", values in UTF-8, user headers as
	// "waybill_name". The payload is the field "data".
	Redis
)

// String returns the name of the protocol.
func (b Binding) String() string {
	switch b {
	case HTTP:
		return "HTTP"
	case NATS:
		return "NATS"
	case Kafka:
		return "Kafka"
	case AMQP:
		return "AMQP"
	case Pulsar:
		return "Pulsar"
	case Redis:
		return "Redis"
	}
	return fmt.Sprintf("binding(%d)", int(b))
}

// rules holds the details of a binding.
type rules struct {
	prefix      string // prefix of attribute names
	also        string // alternative prefix that readers accept
	user        string // prefix of the event's own headers
	contentType string // header of the content type; empty: a protocol field
	ascii       bool   // values are percent-encoded, as CloudEvents requires for HTTP
	noCase      bool   // names are case-insensitive
}

func (b Binding) rules() (rules, bool) {
	switch b {
	case HTTP:
		return rules{prefix: "ce-", user: "waybill-", contentType: "Content-Type", ascii: true, noCase: true}, true
	case NATS:
		return rules{prefix: "ce-", user: "waybill-", contentType: "Content-Type", ascii: true}, true
	case Kafka, Pulsar, Redis:
		return rules{prefix: "ce_", user: "waybill_", contentType: "content-type"}, true
	case AMQP:
		return rules{prefix: "cloudEvents:", also: "cloudEvents_", user: "waybill:"}, true
	}
	return rules{}, false
}

// Attribute returns the name of the header that carries a CloudEvents attribute
// in this binding: Kafka.Attribute("id") is "ce_id".
func (b Binding) Attribute(name string) string {
	r, _ := b.rules()
	return r.prefix + name
}

// UserHeader returns the name of the header that carries one of the event's own
// headers in this binding.
func (b Binding) UserHeader(name string) string {
	r, _ := b.rules()
	return r.userName(name)
}

// HeaderValue returns a value as a header of this binding carries it:
// percent-encoded where the binding requires ASCII.
func (b Binding) HeaderValue(value string) string {
	r, _ := b.rules()
	return r.value(value)
}

func (r *rules) userName(name string) string {
	if !r.ascii {
		return r.user + name
	}
	return r.user + escapeName(name, r.noCase)
}

func (r *rules) value(s string) string {
	if !r.ascii {
		return s
	}
	return escapeValue(s)
}

const hexDigits = "0123456789ABCDEF"

// escapeValue percent-encodes a value as the CloudEvents HTTP binding requires:
// the space, the double quote, the percent sign, and every character that is
// not printable ASCII.
func escapeValue(s string) string {
	return escape(s, func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' })
}

// escapeName percent-encodes the characters that a header name cannot contain
// and, if names are case-insensitive, capital letters, so that two headers that
// differ only in case stay distinct.
func escapeName(s string, noCase bool) string {
	return escape(s, func(c byte) bool {
		switch {
		case c >= 'A' && c <= 'Z':
			return !noCase
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return true
		}
		return strings.IndexByte("-_.~!#$&'*+^`|", c) >= 0
	})
}

func escape(s string, plain func(byte) bool) string {
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	out := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(out)
}

// unescape reverses escape. A percent sign without two hexadecimal digits
// behind it stands for itself, because some producers do not encode it.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := unhex(s[i+1]), unhex(s[i+2])
			if hi >= 0 && lo >= 0 {
				out = append(out, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
