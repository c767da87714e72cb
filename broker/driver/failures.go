package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/waybillhq/waybill"
)

// Failure is one row of a broker's failure table: an error of the broker, and
// its class.
type Failure struct {
	// Name is the broker's error, as the documentation shows it.
	Name string
	// Class is the class of the error: [waybill.ClassPermanent],
	// [waybill.ClassUnavailable], [waybill.ClassRetry] or [waybill.ClassDefer].
	Class waybill.Class
	// Scope is the unavailable part, "broker" or "topic", if Class is
	// [waybill.ClassUnavailable].
	Scope string
	// Why is the reason for the class, in a few words.
	Why string
	// Match reports whether the row applies to an error.
	Match func(err error) bool
}

// Failures is a broker's failure table. The first row that matches applies.
type Failures []Failure

// Unreachable returns the row that every table has: the connection is lost,
// refused or silent, or the caller's context has ended. The event is not at
// fault. The functions also match the broker's own errors of that kind.
func Unreachable(also ...func(error) bool) Failure {
	return Failure{
		Name: "connection lost, refused or silent", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the event was not rejected",
		Match: func(err error) bool {
			return IsUnreachable(err) || slices.ContainsFunc(also, func(match func(error) bool) bool { return match(err) })
		},
	}
}

// IsAny returns a Match that applies to errors that are one of the targets.
func IsAny(targets ...error) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
}

// IsUnreachable reports whether err means that the server was not reached or
// did not answer.
func IsUnreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED)
}

// Row returns the first row that matches err, and whether there is one.
func (f Failures) Row(err error) (Failure, bool) {
	for _, row := range f {
		if row.Match(err) {
			return row, true
		}
	}
	return Failure{}, false
}

// Classify gives an error its class. An error that already has a class keeps
// it. An error that matches no row counts as a failed attempt: the broker
// answered, and the meaning of the answer is unknown. Classify(nil) is nil.
func (f Failures) Classify(err error) error {
	if err == nil {
		return nil
	}
	if class, _ := waybill.Classify(err); class != waybill.ClassRetry {
		return err
	}
	row, ok := f.Row(err)
	if !ok {
		return err
	}
	switch row.Class {
	case waybill.ClassPermanent:
		return waybill.Permanent(err)
	case waybill.ClassUnavailable:
		return waybill.Unavailable(err)
	case waybill.ClassDefer:
		return waybill.Later(0, err)
	case waybill.ClassDone, waybill.ClassRetry:
	}
	return err
}

// EventError returns the result of an event that was not published: the error
// with the event's id and its class. The text begins with pkg, the name of the
// sink's package, and shows no secret of the URLs; see [RedactError]. Without
// URLs the result can be unwrapped.
func (f Failures) EventError(pkg, urls string, ev *waybill.Event, err error) error {
	err = f.Classify(fmt.Errorf("%s: event %s: %w", pkg, ev.ID, err))
	if urls == "" {
		return err
	}
	return RedactError(err, urls)
}

// Table returns the rows as a Markdown table; the documentation contains
// exactly this text.
func (f Failures) Table() string {
	var b strings.Builder
	b.WriteString("| broker error | class | reason |\n|---|---|---|\n")
	for _, row := range f {
		class := row.Class.String()
		if row.Scope != "" {
			class += " (" + row.Scope + ")"
		}
		b.WriteString("| " + row.Name + " | " + class + " | " + row.Why + " |\n")
	}
	return b.String()
}
