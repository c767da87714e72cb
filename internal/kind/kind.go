// Package kind names kinds of events: an aggregate type and an event type in
// one string.
package kind

import "strings"

// Name returns the name of a kind of events. Two kinds never have the same
// name: a colon or a backslash in a type is escaped.
func Name(aggregateType, eventType string) string {
	if strings.ContainsAny(aggregateType, `:\`) {
		aggregateType = escape.Replace(aggregateType)
	}
	if strings.ContainsAny(eventType, `:\`) {
		eventType = escape.Replace(eventType)
	}
	return aggregateType + ":" + eventType
}

var escape = strings.NewReplacer(`\`, `\\`, `:`, `\:`)
