package waybill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill/internal/jsontext"
)

// The limits of an event, in bytes unless stated otherwise.
const (
	maxType        = 128
	maxAggregate   = 64
	maxAggregateID = 128
	maxTenantID    = 64
	maxTopic       = 128
	maxRoutingKey  = 100
	maxSchemaID    = 128
	maxDedupKey    = 255
	maxOriginID    = 128
	maxContentType = 128
	maxHeaders     = 64 // entries
	maxHeaderBytes = 16 << 10
	maxPriority    = 32767
	maxVersion     = 1<<31 - 1
	maxDelay       = 100 * 365 * 24 * time.Hour

	// MaxPayload is the maximum payload size of an event.
	MaxPayload = 1_048_576
)

// The years that every database can store.
const (
	minYear = 1000
	maxYear = 9999
)

// FieldError is the problem of one field of an event. It never contains the
// field's value.
type FieldError struct {
	// Field is the field's name in [Event].
	Field string
	// Problem describes the violated limit or rule.
	Problem string
}

// Error returns "Field: problem".
func (e *FieldError) Error() string {
	return e.Field + ": " + e.Problem
}

// Validate reports every invalid field of the event: one [*FieldError] per
// field, joined, or the encoding error stored in the event. Fields with
// defaults may be empty. Every database can store an event that Validate
// accepts.
func (e Event) Validate() error {
	if err := e.problems(); err != nil {
		name := e.Type
		if name == "" || len(name) > maxType || !utf8.ValidString(name) || strings.ContainsFunc(name, isControl) {
			name = "?"
		}
		return fmt.Errorf("waybill: event %s: %w", name, err)
	}
	return nil
}

func (e *Event) problems() error {
	if e.err != nil {
		return e.err
	}
	var errs []error
	text := func(field, s string, limit int) {
		if err := checkText(field, s, limit); err != nil {
			errs = append(errs, err)
		}
	}
	if e.Type == "" {
		errs = append(errs, &FieldError{"Type", "is empty"})
	}
	text("Type", e.Type, maxType)
	text("AggregateType", e.AggregateType, maxAggregate)
	text("AggregateID", e.AggregateID, maxAggregateID)
	text("TenantID", e.TenantID, maxTenantID)
	text("Topic", e.Topic, maxTopic)
	text("RoutingKey", e.RoutingKey, maxRoutingKey)
	text("SchemaID", e.SchemaID, maxSchemaID)
	text("DedupKey", e.DedupKey, maxDedupKey)
	text("CorrelationID", e.CorrelationID, maxOriginID)
	text("CausationID", e.CausationID, maxOriginID)
	text("ContentType", e.ContentType, maxContentType)
	if err := checkRange("SchemaVersion", e.SchemaVersion, maxVersion); err != nil {
		errs = append(errs, err)
	}
	if err := checkRange("Priority", e.Priority, maxPriority); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, checkTimes(e)...)
	if err := checkHeaders(e.Headers); err != nil {
		errs = append(errs, err)
	}
	if err := checkPayload(e.ContentType, e.Payload); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func checkText(field, s string, limit int) error {
	switch {
	case len(s) <= limit && isPlain(s):
		return nil
	case len(s) > limit:
		return &FieldError{field, fmt.Sprintf("%d bytes, at most %d", len(s), limit)}
	case !utf8.ValidString(s):
		return &FieldError{field, "not valid UTF-8"}
	case strings.ContainsFunc(s, isControl):
		return &FieldError{field, "contains a control character"}
	}
	return nil
}

// isPlain reports whether s is printable ASCII, as nearly all fields are.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// isControl reports characters that no field of an event may contain: some
// databases cannot store them (NUL), or they would let one header pass for two
// (CR, LF).
func isControl(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0
}

func checkRange(field string, n, limit int) error {
	if n < 0 || n > limit {
		return &FieldError{field, fmt.Sprintf("%d is not between 0 and %d", n, limit)}
	}
	return nil
}

func checkTimes(e *Event) []error {
	var errs []error
	for _, t := range []struct {
		field string
		value time.Time
	}{{"OccurredAt", e.OccurredAt}, {"AvailableAt", e.AvailableAt}} {
		if y := t.value.UTC().Year(); !t.value.IsZero() && (y < minYear || y > maxYear) {
			errs = append(errs, &FieldError{t.field, fmt.Sprintf("year %d is not between %d and %d", y, minYear, maxYear)})
		}
	}
	if e.Delay < 0 || e.Delay > maxDelay {
		errs = append(errs, &FieldError{"Delay", fmt.Sprintf("%v is not between 0 and 100 years", e.Delay)})
	}
	if e.Delay > 0 && !e.AvailableAt.IsZero() {
		errs = append(errs, &FieldError{"Delay", "is set together with AvailableAt; set one of them"})
	}
	return errs
}

// checkHeaders reports the first invalid header in alphabetical order, so that
// the same event always has the same error.
func checkHeaders(headers map[string]string) error {
	if len(headers) == 0 {
		return nil
	}
	if len(headers) > maxHeaders {
		return &FieldError{"Headers", fmt.Sprintf("%d entries, at most %d", len(headers), maxHeaders)}
	}
	total := 0
	var bad []string
	for name, value := range headers {
		total += len(name) + len(value)
		if name == "" || checkText("", name, maxHeaderBytes) != nil || checkText("", value, maxHeaderBytes) != nil {
			bad = append(bad, name)
		}
	}
	if total > maxHeaderBytes {
		return &FieldError{"Headers", fmt.Sprintf("%d bytes of names and values, at most %d", total, maxHeaderBytes)}
	}
	if len(bad) == 0 {
		return nil
	}
	name := slices.Min(bad)
	if name == "" {
		return &FieldError{"Headers", "an empty name"}
	}
	if err := checkText("Headers", name, maxHeaderBytes); err != nil {
		return &FieldError{"Headers", "a name " + strings.TrimPrefix(err.Error(), "Headers: ")}
	}
	err := checkText("Headers", headers[name], maxHeaderBytes)
	return &FieldError{"Headers", fmt.Sprintf("the value of %q %s", name, strings.TrimPrefix(err.Error(), "Headers: "))}
}

func checkPayload(contentType string, payload []byte) error {
	switch {
	case len(payload) > MaxPayload:
		return &FieldError{"Payload", fmt.Sprintf("%d bytes, at most %d", len(payload), MaxPayload)}
	case jsontext.IsType(contentType) && !jsontext.Valid(payload):
		return &FieldError{"Payload", "not valid JSON; set ContentType if it is something else"}
	}
	return nil
}
