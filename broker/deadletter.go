package broker

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxReason limits the reason in a dead letter, in bytes.
const maxReason = 512

// DeadLetter returns the message for the dead-letter destination: the original
// message, with the reason, the source, the delivery count and the time in its
// headers. The publish id differs from the original's, which the broker may
// have seen in the same stream.
func DeadLetter(c *Codec, source string, in *Incoming, reason error) Message {
	m, b := in.Message, c.Binding()
	headers := make([]Header, 0, len(m.Headers)+4)
	for _, h := range m.Headers {
		switch h.Name {
		case HeaderDeadReason, HeaderDeadSource, HeaderDeadAttempt, HeaderDeadTime: // moved back, and dead again
		default:
			headers = append(headers, h)
		}
	}
	text := ""
	if reason != nil {
		text = printable(reason.Error(), maxReason)
	}
	m.Headers = append(headers,
		Header{HeaderDeadReason, b.HeaderValue(text)}, Header{HeaderDeadSource, b.HeaderValue(printable(source, maxReason))},
		Header{HeaderDeadAttempt, strconv.Itoa(in.attempt())}, Header{HeaderDeadTime, time.Now().UTC().Format(time.RFC3339)})
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
