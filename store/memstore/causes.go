package memstore

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// NoteCauses implements [driver.Causes].
func (v reads) NoteCauses(_ context.Context, limit int) (int, error) {
	s := v.lock()
	defer v.mu.Unlock()
	n := 0
	for r := range s.buried.all {
		if r.cause == "" && n < limit {
			r.cause = driver.CauseOf(r.LastError)
			n++
		}
	}
	return n, nil
}

// CountCauses implements [driver.Causes].
func (v reads) CountCauses(_ context.Context, limit int) ([]driver.CauseCount, error) {
	s := v.lock()
	defer v.mu.Unlock()
	var out []driver.CauseCount
	for r := range s.buried.all { // by time of death
		i := slices.IndexFunc(out, func(c driver.CauseCount) bool { return c.ID == r.cause })
		if i < 0 {
			i = len(out)
			out = append(out, driver.CauseCount{ID: r.cause, First: r.ended})
		}
		out[i].Letters++
		out[i].Last = r.ended
	}
	slices.SortFunc(out, func(a, b driver.CauseCount) int {
		return cmp.Or(cmp.Compare(b.Letters, a.Letters), strings.Compare(a.ID, b.ID))
	})
	return out[:min(max(limit, 0), len(out))], nil
}

// ListCause implements [driver.Causes].
func (v reads) ListCause(_ context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	s := v.lock()
	defer v.mu.Unlock()
	var found []*record
	for r := range s.buried.all {
		if cause != "" && r.cause == cause && r.Seq > after {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, bySeq)
	return copyRecords(found[:min(max(limit, 0), len(found))]), nil
}
