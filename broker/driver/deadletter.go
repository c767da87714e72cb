package driver

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill/broker"
)

// maxReason limits the reason in a dead letter, in bytes.
const maxReason = 512

// DeadLetter returns the message for the dead-letter destination: the original
// message, with the reason, the source, the delivery count and the time in its
// headers. The publish id differs from the original's, which the broker may
// have seen in the same stream.
func DeadLetter(c *broker.Codec, source string, in *Incoming, reason error) broker.Message {
	m, b := in.Message, c.Binding()
	headers := make([]broker.Header, 0, len(m.Headers)+4)
	for _, h := range m.Headers {
		switch h.Name {
		case broker.HeaderDeadReason, broker.HeaderDeadSource, broker.HeaderDeadAttempt, broker.HeaderDeadTime: // moved back, and dead again
		default:
			headers = append(headers, h)
		}
	}
	text := ""
	if reason != nil {
		text = printable(reason.Error(), maxReason)
	}
	m.Headers = append(headers,
		broker.Header{Name: broker.HeaderDeadReason, Value: b.HeaderValue(text)},
		broker.Header{Name: broker.HeaderDeadSource, Value: b.HeaderValue(printable(source, maxReason))},
		broker.Header{Name: broker.HeaderDeadAttempt, Value: strconv.Itoa(in.attempt())},
		broker.Header{Name: broker.HeaderDeadTime, Value: time.Now().UTC().Format(time.RFC3339)})
	if m.PublishID != "" {
		m.PublishID += "-dead"
	}
	return m
}

// printable returns s as valid UTF-8 of at most limit bytes without control
// characters.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
