package drivertest

import (
	"errors"
	"fmt"
)

// feature is a requirement of a check.
type feature int

const (
	anyStore feature = iota
	plainSQL
	savepoints
	savepointSQL
	lateCommits
	foreignTx
	storedHeaders
)

// lacks returns the reason why a store lacks the feature, or "" if it has it.
func (f Features) lacks(need feature) string {
	switch need {
	case plainSQL:
		return unless(f.PlainSQL, "no plain SQL inserts (Features.PlainSQL)")
	case savepoints:
		return unless(f.SavepointAPI || f.SavepointSQL, "no savepoints (Features.SavepointAPI, SavepointSQL)")
	case savepointSQL:
		return unless(f.SavepointSQL, "no savepoints with SQL text (Features.SavepointSQL)")
	case lateCommits:
		return unless(f.LateCommits, "no row can appear below an already read seq (Features.LateCommits)")
	case foreignTx:
		return unless(f.ForeignTx, "no transactions but the store's own (Features.ForeignTx)")
	case storedHeaders:
		return unless(f.StoredHeaders, "the stored text of headers cannot be overwritten (Features.StoredHeaders)")
	case anyStore:
	}
	return ""
}

func unless(has bool, reason string) string {
	if has {
		return ""
	}
	return reason
}

// check reports the functions that features require and the instance lacks.
func (in Instance[T]) check(f Features) error {
	var errs []error
	want := func(on bool, name string, missing bool, function string) {
		if on && missing {
			errs = append(errs, fmt.Errorf("drivertest: Features.%s is on, but Instance.%s is nil", name, function))
		}
	}
	if len(in.DB.Names()) == 0 {
		errs = append(errs, errors.New("drivertest: Instance.DB has no roles"))
	}
	if (in.Insert == nil) != (in.Count == nil) {
		errs = append(errs, errors.New("drivertest: Instance has only one of Insert and Count"))
	}
	want(f.PlainSQL, "PlainSQL", in.InsertPlain == nil, "InsertPlain")
	want(f.SavepointAPI, "SavepointAPI", in.Savepoint == nil, "Savepoint")
	want(f.SavepointSQL, "SavepointSQL", in.Exec == nil, "Exec")
	want(f.SecondStore, "SecondStore", in.Second == nil, "Second")
	want(f.ForeignTx, "ForeignTx", in.Begin == nil, "Begin")
	want(f.LateCommits, "LateCommits", in.Begin == nil, "Begin")
	want(f.StoredHeaders, "StoredHeaders", in.SetHeaders == nil, "SetHeaders")
	return errors.Join(errs...)
}
