package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// note records the change that the context is for, if it changed rows; mu is
// held.
func (t *tables) note(ctx context.Context, n int) {
	rec, ok := driver.AuditOf(ctx)
	if !ok || n == 0 {
		return
	}
	if i := slices.IndexFunc(t.audit, func(r driver.AuditRecord) bool { return r.ID == rec.ID }); i >= 0 {
		t.audit[i].Count += int64(n)
		return
	}
	rec.At, rec.Count = clock(), int64(n)
	t.audit = append(t.audit, rec)
}

// byAge compares the places of two records in the audit.
func byAge(a, b driver.AuditCursor) int {
	return cmp.Or(a.At.Compare(b.At), bytes.Compare(a.ID[:], b.ID[:]))
}

func cursorOf(r driver.AuditRecord) driver.AuditCursor { return driver.AuditCursor{At: r.At, ID: r.ID} }

// ListAudit implements [driver.Audit].
func (t *tables) ListAudit(_ context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []driver.AuditRecord
	for _, r := range t.audit {
		switch {
		case r.At.Before(f.Since), !f.Until.IsZero() && !r.At.Before(f.Until):
		case f.Actor != "" && f.Actor != r.Actor, f.Action != "" && f.Action != r.Action:
		case before != driver.AuditCursor{} && byAge(cursorOf(r), before) >= 0:
		default:
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b driver.AuditRecord) int { return byAge(cursorOf(b), cursorOf(a)) })
	return out[:min(max(limit, 0), len(out))], nil
}

// PurgeAudit implements [driver.Audit].
func (t *tables) PurgeAudit(_ context.Context, age time.Duration, limit int) (int, error) {
	if age < 0 {
		return 0, fmt.Errorf("memstore: purge: negative age %v", age)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortFunc(t.audit, func(a, b driver.AuditRecord) int { return byAge(cursorOf(a), cursorOf(b)) })
	cutoff, n := clock().Add(-age), 0
	for n < min(max(limit, 0), len(t.audit)) && t.audit[n].At.Before(cutoff) {
		n++
	}
	t.audit = slices.Delete(t.audit, 0, n)
	return n, nil
}
