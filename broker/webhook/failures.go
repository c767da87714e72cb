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
	"github.com/waybillhq/waybill/broker/driver"
)

// StatusError is a response that is not a delivery.
type StatusError struct {
	Code int
	// RetryAfter is the delay that the response asks for, or 0.
	RetryAfter time.Duration
	// Excerpt is the beginning of the response body, if it is text.
	Excerpt string
}

func (e *StatusError) Error() string {
	text := "answered " + strconv.Itoa(e.Code) + " " + http.StatusText(e.Code)
	if e.Excerpt != "" {
		text += ": " + e.Excerpt
	}
	return text
}

// TooManyRequests reports whether the endpoint asks for fewer requests. A relay
// lowers the rate of a destination whose sink returns such an error.
func (e *StatusError) TooManyRequests() bool { return e.Code == http.StatusTooManyRequests }

// Failures returns the failure table of webhooks, as the package comment and
// docs/brokers.md show it.
func Failures() driver.Failures {
	return driver.Failures{
		{
			Name: "425 with Retry-After", Class: waybill.ClassDefer, Why: "the receiver is not ready for the event",
			Match: func(err error) bool {
				var e *StatusError
				return errors.As(err, &e) && e.Code == http.StatusTooEarly && e.RetryAfter > 0
			},
		},
		{
			Name: "400, 410, 413, 414, 415, 422, 431", Class: waybill.ClassPermanent, Why: "the event is rejected permanently",
			Match: answers(http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
				http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge),
		},
		{Name: "429", Class: waybill.ClassRetry, Why: "too many requests; Retry-After sets the delay", Match: answers(http.StatusTooManyRequests)},
		{
			Name: "502, 503, 504", Class: waybill.ClassUnavailable, Scope: "endpoint",
			Why:   "a proxy answers for the endpoint, or the endpoint reports that it is unavailable",
			Match: answers(http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout),
		},
		{
			Name: "any other status", Class: waybill.ClassRetry, Why: "the endpoint answered and did not accept the event",
			Match: func(err error) bool { var e *StatusError; return errors.As(err, &e) },
		},
		{
			Name: "the address is not public (PublicOnly)", Class: waybill.ClassRetry,
			Why:   "the endpoint's name resolves to a network that PublicOnly excludes; nothing was sent",
			Match: func(err error) bool { return errors.Is(err, ErrNotPublic) },
		},
		{
			Name: "connection lost, refused or silent", Class: waybill.ClassUnavailable, Scope: "endpoint", Why: "the event was not rejected",
			Match: driver.IsUnreachable,
		},
		{
			Name: "the certificate is not trusted", Class: waybill.ClassUnavailable, Scope: "endpoint",
			Why: "the endpoint could not be verified; nothing was sent", Match: untrusted,
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

// classify gives an error its class, and the delay that the response asks for.
func classify(table driver.Failures, err error) error {
	row, known := table.Row(err)
	if !known {
		// The client failed before it had a response, with an error that is in
		// no table: the event was not rejected.
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

// retryAfter parses the header Retry-After: seconds, or a date. The result is
// at most limit.
func retryAfter(h http.Header, now time.Time, limit time.Duration) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	if seconds, err := strconv.Atoi(text); err == nil {
		if seconds < 0 {
			return 0
		}
		if seconds > int(limit/time.Second) {
			return limit
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), limit)
}

// excerpt returns the beginning of a response as one line of printable text for
// a log.
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

// fieldError joins the errors of a config.
func fieldError(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	return nil
}
