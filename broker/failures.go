package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/waybillhq/waybill"
)

// Failure is one row of a broker's table of errors: what it reports, and what that means for the event.
type Failure struct {
	// Name is what the broker reports, as the documentation shows it.
	Name string
	// Class is what it means: Dead (permanent), Down (unavailable), Counted or Uncounted (try again).
	Class waybill.Class
	// Scope is what is down, if the class is Down: "broker" or "topic".
	Scope string
	// Why says why, in a few words.
	Why string
	// Match reports whether an error is this one.
	Match func(err error) bool
}

// Failures is a broker's table of errors. The first row that matches counts.
type Failures []Failure

// Unreachable is the row that every table has: the connection is lost, refused or silent, or the caller's time is over. Nothing is wrong with the event.
func Unreachable() Failure {
	return Failure{
		Name: "connection lost, refused or silent", Class: waybill.ClassUnavailable, Scope: "broker", Why: "nobody has refused the event", Match: IsUnreachable,
	}
}

// IsUnreachable reports whether an error says that the other side was not reached, or has not answered.
func IsUnreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED)
}

// Row returns the row for an error, and whether there is one.
func (f Failures) Row(err error) (Failure, bool) {
	for _, row := range f {
		if row.Match(err) {
			return row, true
		}
	}
	return Failure{}, false
}

// Classify gives an error its class. One that already has a class keeps it, and one that is in no row is a failed attempt, which counts: it was
// an answer, and nobody knows what it means. nil is nil.
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

// Table returns the rows as a table in Markdown; the documentation has exactly this.
func (f Failures) Table() string {
	var b strings.Builder
	b.WriteString("| what the broker reports | class | why |\n|---|---|---|\n")
	for _, row := range f {
		class := row.Class.String()
		if row.Scope != "" {
			class += " (" + row.Scope + ")"
		}
		b.WriteString("| " + row.Name + " | " + class + " | " + row.Why + " |\n")
	}
	return b.String()
}
