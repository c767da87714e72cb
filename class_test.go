package waybill_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
)

func TestClassify(t *testing.T) {
	plain := errors.New("plain")
	wrap := func(err error) error { return fmt.Errorf("around: %w", err) }
	for _, c := range []struct {
		name  string
		err   error
		class waybill.Class
		delay time.Duration
	}{
		{"nil", nil, waybill.ClassDone, 0},
		{"plain", plain, waybill.ClassRetry, 0},
		{"permanent", waybill.Permanent(plain), waybill.ClassPermanent, 0},
		{"unavailable", waybill.Unavailable(plain), waybill.ClassUnavailable, 0},
		{"retry after", waybill.RetryAfter(time.Minute, plain), waybill.ClassRetry, time.Minute},
		{"retry after nothing", waybill.RetryAfter(-time.Minute, plain), waybill.ClassRetry, 0},
		{"later", waybill.Later(time.Second, plain), waybill.ClassDefer, time.Second},
		{"wrapped", wrap(wrap(waybill.Unavailable(plain))), waybill.ClassUnavailable, 0},
		{"the outermost decides", waybill.Permanent(wrap(waybill.Unavailable(plain))), waybill.ClassPermanent, 0},
		{"the outermost decides, the other way", waybill.Unavailable(waybill.Permanent(plain)), waybill.ClassUnavailable, 0},
		{"dead", wrap(waybill.ErrDead), waybill.ClassPermanent, 0},
		{"conflict", waybill.ErrConflict, waybill.ClassPermanent, 0},
		{"in progress", waybill.ErrInProgress, waybill.ClassRetry, 0},
		{"dead, but later", waybill.Later(time.Second, waybill.ErrDead), waybill.ClassDefer, time.Second},
		{"joined: the least final", errors.Join(waybill.Permanent(plain), waybill.Unavailable(plain)), waybill.ClassUnavailable, 0},
		{"joined with plain", errors.Join(waybill.Permanent(plain), plain), waybill.ClassRetry, 0},
		{"joined dead ones", errors.Join(waybill.Permanent(plain), waybill.ErrConflict), waybill.ClassPermanent, 0},
		{"joined with later", errors.Join(plain, waybill.Later(time.Second, plain)), waybill.ClassDefer, time.Second},
		{"joined delays: the longest", errors.Join(waybill.RetryAfter(1, plain), waybill.RetryAfter(3, plain), waybill.RetryAfter(2, plain)), waybill.ClassRetry, 3},
		{"joined inside joined", errors.Join(errors.Join(waybill.Permanent(plain), waybill.ErrDead), waybill.Later(5, plain)), waybill.ClassDefer, 5},
		{"wrapped join", wrap(errors.Join(waybill.Permanent(plain), waybill.Unavailable(plain))), waybill.ClassUnavailable, 0},
		{"classified join", waybill.Permanent(errors.Join(plain, waybill.Unavailable(plain))), waybill.ClassPermanent, 0},
		{"one of a join", errors.Join(nil, waybill.Permanent(plain)), waybill.ClassPermanent, 0},
		{"two verbs", fmt.Errorf("%w and %w", waybill.Permanent(plain), waybill.Later(7, plain)), waybill.ClassDefer, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			if class, delay := waybill.Classify(c.err); class != c.class || delay != c.delay {
				t.Errorf("Classify is %s, %v, want %s, %v", class, delay, c.class, c.delay)
			}
		})
	}
}

func TestClassesOfNothing(t *testing.T) {
	for name, err := range map[string]error{
		"Permanent": waybill.Permanent(nil), "Unavailable": waybill.Unavailable(nil),
		"RetryAfter": waybill.RetryAfter(time.Second, nil), "Later": waybill.Later(time.Second, nil),
	} {
		if err != nil {
			t.Errorf("%s(nil) is %v, want nil", name, err)
		}
	}
}

// A class keeps the error's text and identity.
func TestClassKeepsTheError(t *testing.T) {
	cause := errors.New("the cause")
	for _, err := range []error{
		waybill.Permanent(cause), waybill.Unavailable(cause), waybill.RetryAfter(1, cause), waybill.Later(1, cause),
	} {
		if !errors.Is(err, cause) || err.Error() != "the cause" {
			t.Errorf("%v lost its cause", err)
		}
	}
}

func TestClassString(t *testing.T) {
	for class, want := range map[waybill.Class]string{
		waybill.ClassDone: "done", waybill.ClassUnavailable: "unavailable", waybill.ClassDefer: "defer", waybill.ClassRetry: "retry", waybill.ClassPermanent: "permanent",
		waybill.Class(42): "class(42)",
	} {
		if got := class.String(); got != want {
			t.Errorf("class %d is %q, want %q", int(class), got, want)
		}
	}
}
