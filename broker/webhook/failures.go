package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// StatusError is an answer that is not a delivery.
type StatusError struct {
	Code int
	// RetryAfter is what the answer asks for; 0 if it asks for nothing.
	RetryAfter time.Duration
	// Excerpt is the beginning of the answer's text, if it is text.
	Excerpt string
}

func (e *StatusError) Error() string {
	text := "answered " + strconv.Itoa(e.Code) + " " + http.StatusText(e.Code)
	if e.Excerpt != "" {
		text += ": " + e.Excerpt
	}
	return text
}

// Failures is what the answers mean, as the package comment and docs/brokers.md show it.
func Failures() broker.Failures {
	return broker.Failures{
		{
			Name: "425 with Retry-After", Class: waybill.ClassDefer, Why: "it is not the event's turn yet",
			Match: func(err error) bool {
				var e *StatusError
				return errors.As(err, &e) && e.Code == http.StatusTooEarly && e.RetryAfter > 0
			},
		},
		{
			Name: "400, 410, 413, 414, 415, 422, 431", Class: waybill.ClassPermanent, Why: "this event is refused, and will be",
			Match: answers(http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
				http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge),
		},
		{Name: "429", Class: waybill.ClassRetry, Why: "too many requests; Retry-After says when", Match: answers(http.StatusTooManyRequests)},
		{
			Name: "502, 503, 504", Class: waybill.ClassUnavailable, Scope: "endpoint",
			Why:   "something in front of the endpoint speaks for it, or it says itself that it is away",
			Match: answers(http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout),
		},
		{
			Name: "any other status", Class: waybill.ClassRetry, Why: "it was reached, and did not take the event",
			Match: func(err error) bool { var e *StatusError; return errors.As(err, &e) },
		},
		{
			Name: "the address is not public (PublicOnly)", Class: waybill.ClassRetry,
			Why:   "the endpoint's name leads into a network that is closed to it; nothing was sent",
			Match: func(err error) bool { return errors.Is(err, ErrNotPublic) },
		},
		{
			Name: "connection lost, refused or silent", Class: waybill.ClassUnavailable, Scope: "endpoint", Why: "nobody has refused the event",
			Match: broker.IsUnreachable,
		},
		{
			Name: "the certificate is not trusted", Class: waybill.ClassUnavailable, Scope: "endpoint",
			Why: "it is not the endpoint that was meant; nothing was sent", Match: untrusted,
		},
	}
}

func answers(codes ...int) func(error) bool {
	return func(err error) bool {
		var e *StatusError
		return errors.As(err, &e) && slices.Contains(codes, e.Code)
	}
}

func untrusted(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		name         x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &name) || errors.As(err, &invalid)
}

// classify gives an error its class, and the delay that the answer asks for.
func classify(table broker.Failures, err error) error {
	row, known := table.Row(err)
	if !known {
		// The client failed before it had an answer, in a way that is in no table: nobody has refused the event.
		return waybill.Unavailable(err)
	}
	var status *StatusError
	if errors.As(err, &status) && status.RetryAfter > 0 {
		switch row.Class {
		case waybill.ClassDefer:
			return waybill.Later(status.RetryAfter, err)
		case waybill.ClassRetry:
			return waybill.RetryAfter(status.RetryAfter, err)
		case waybill.ClassDone, waybill.ClassUnavailable, waybill.ClassPermanent:
		}
	}
	return table.Classify(err)
}

// retryAfter reads the header of that name: seconds, or a date. It is at most most.
func retryAfter(h http.Header, now time.Time, most time.Duration) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	if seconds, err := strconv.Atoi(text); err == nil {
		if seconds < 0 {
			return 0
		}
		if seconds > int(most/time.Second) {
			return most
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), most)
}

// excerpt makes the beginning of an answer fit for a log: one line of printable text.
func excerpt(body []byte) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r == '\uFFFD':
			return -1
		}
		return r
	}, string(body))
	return strings.Join(strings.Fields(text), " ")
}

// fieldError joins what is wrong with a config.
func fieldError(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	return nil
}
