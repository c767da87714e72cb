// Package panics turns panics of the user's functions into errors.
package panics

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic, as an error.
type PanicError struct {
	Value any
	stack []byte
}

// Recovered returns the error for what recover returned. Call it where that was called, so that the stack is the panic's.
func Recovered(v any) *PanicError { return &PanicError{Value: v, stack: debug.Stack()} }

// Error returns the panic's value; the stack is not part of it, so that it is not stored with the event.
func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Stack returns where it happened.
func (p *PanicError) Stack() string { return string(p.stack) }

// Unwrap returns the error that was panicked with, if it was one.
func (p *PanicError) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Call calls fn and returns its panic as a [PanicError].
func Call(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Recovered(v)
		}
	}()
	return fn()
}
