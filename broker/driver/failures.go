package driver

import (
	"context"
	"errors"
	"io"
	"net"
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
// fault.
func Unreachable() Failure {
	return Failure{
		Name: "connection lost, refused or silent", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the event was not rejected", Match: IsUnreachable,
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
