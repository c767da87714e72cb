// Package message has the rules of messages that packages broker and
// broker/driver share.
package message

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
)

// PublishID returns the id of one publication of an event: "ID", and "ID-r2"
// for its second replay.
func PublishID(id string, replay int) string {
	if replay <= 0 {
		return id
	}
	return id + "-r" + strconv.Itoa(replay)
}

// AppendAggregateKey appends the tenant, aggregate type and aggregate id of an
// event to text and returns the appended part, which is unique per aggregate.
// The result is empty for an event without order.
func AppendAggregateKey(text *strings.Builder, ev *waybill.Event) string {
	if !ev.Ordered() {
		return ""
	}
	start := text.Len()
	for i, part := range [...]string{ev.TenantID, ev.AggregateType, ev.AggregateID} {
		if i > 0 {
			text.WriteByte('/')
		}
		text.WriteString(keyPart(part))
	}
	return text.String()[start:]
}

// keyPart escapes the separator, so that "a/b" of "c" and "a" of "b/c" have
// different keys.
func keyPart(s string) string {
	if !strings.ContainsAny(s, "/%") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(s)
}

const maxSource = 512

// CheckEventSource returns an error if source cannot be the CloudEvents
// attribute source. An empty source is valid: it has a default.
func CheckEventSource(source string) error {
	if len(source) > maxSource || strings.ContainsFunc(source, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return fmt.Errorf("not a URI reference of at most %d printable ASCII characters", maxSource)
	}
	return nil
}
