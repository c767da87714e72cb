package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/store"
)

// selection selects events: by filter, and dead letters also by cause.
type selection struct {
	Destination string
	Cause       string
	Filter      store.Filter
	// SinceText and UntilText are the times of the filter as they were typed.
	SinceText, UntilText string
}

// selectionOf reads a selection from the parameters of an address or a form.
func selectionOf(value func(name string) string, now time.Time) (selection, error) {
	s := selection{
		Destination: value("destination"), Cause: value("cause"), SinceText: value("since"), UntilText: value("until"),
		Filter: store.Filter{
			Type: value("type"), AggregateType: value("aggregate_type"), AggregateID: value("aggregate_id"), TenantID: value("tenant_id"),
			CorrelationID: value("correlation_id"), Error: value("error"),
		},
	}
	if err := errors.Join(parseBound(s.SinceText, now, &s.Filter.Since), parseBound(s.UntilText, now, &s.Filter.Until)); err != nil {
		return s, errTime
	}
	if f := s.Filter; !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return s, refuse(http.StatusBadRequest, "The first time must be before the second one.")
	}
	return s, nil
}

// IsFiltered reports whether the selection has a filter.
func (s selection) IsFiltered() bool { return s.Filter != (store.Filter{}) }

// boundForms are the forms of a time, which is in UTC unless it has a zone.
var boundForms = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"}

var errTime = refuse(http.StatusBadRequest, "A time must look like 2026-01-31 15:04, in UTC, or like 2h or 7d, before now.")

// parseBound reads a time, or an age such as 90m, 2h or 7d.
func parseBound(text string, now time.Time, to *time.Time) error {
	if text == "" {
		return nil
	}
	for _, form := range boundForms {
		if at, err := time.Parse(form, text); err == nil {
			*to = at
			return nil
		}
	}
	age, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n int64
		n, err = strconv.ParseInt(days, 10, 16)
		age = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || age <= 0 {
		return errTime
	}
	*to = now.Add(-age)
	return nil
}
