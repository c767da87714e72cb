// Package panics turns panics of the user's functions into errors.
package panics

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic as an error.
type PanicError struct {
	Value any
	stack []byte
}

// Recovered returns the error for a recovered value. Call it in the deferred
// function that called recover, so that the stack is the panic's.
func Recovered(v any) *PanicError { return &PanicError{Value: v, stack: debug.Stack()} }

// Error returns the panic's value without the stack, which must not be stored
// with the event.
func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Stack returns the stack of the panic.
func (p *PanicError) Stack() string { return string(p.stack) }

// Unwrap returns the panic's value if it is an error.
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
