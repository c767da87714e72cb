package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Jobs over Waybill's own tables. Each is a value: change its name, schedule or
// window before passing it to [New].

// pageSize is the number of records read per query.
const pageSize = 500

// StuckLeases reports records of consumer groups that are in processing and
// whose lease expired longer ago than age: the consumer died, and the event has
// not been delivered again since. It wakes the relays of this database, if
// there are any.
func StuckLeases[T any](db driver.Store[T], age time.Duration) Job {
	roles, missing := driver.Get(db, "reconcile", "InboxRecords")
	return Job{Name: "stuck-leases", Check: func(ctx context.Context, _ Window, found func(string)) error {
		if missing != nil {
			return missing
		}
		stuck := false
		err := eachRecord(ctx, roles.InboxRecords, store.RecordFilter{States: []store.InboxState{store.InboxProcessing}}, func(r store.InboxRecord) {
			if since := r.Now.Sub(r.LeaseUntil); since > age {
				stuck = true
				found(fmt.Sprintf("group %s: event %s, attempt %d: its lease expired %v ago", r.Group, r.Event, r.Attempts, since.Round(time.Second)))
			}
		})
		if stuck && roles.Relay != nil {
			roles.Relay.Local().Wake()
		}
		return err
	}}
}

// StuckKeys reports idempotency keys that are in processing and whose lease
// expired longer ago than age: the client has not repeated the request since,
// and may not know its outcome.
func StuckKeys[T any](db driver.Store[T], age time.Duration) Job {
	roles, missing := driver.Get(db, "reconcile", "KeyRecords")
	return Job{Name: "stuck-keys", Check: func(ctx context.Context, _ Window, found func(string)) error {
		if missing != nil {
			return missing
		}
		f := store.KeyFilter{States: []store.KeyState{store.KeyProcessing}}
		for after := (store.KeyID{}); ; {
			page, err := roles.KeyRecords.ListKeys(ctx, f, after, pageSize)
			if err != nil {
				return err
			}
			for _, r := range page {
				if since := r.Now.Sub(r.LeaseUntil); since > age {
					found(fmt.Sprintf("operation %s: a key of tenant %q, attempt %d: its lease expired %v ago",
						r.Operation, r.Tenant, r.Attempts, since.Round(time.Second)))
				}
				after = r.KeyID
			}
			if len(page) < pageSize {
				return nil
			}
		}
	}}
}

// NearLimit reports events of a group that have failed at least the given
// number of times and are not dead yet. An empty group means all groups.
func NearLimit[T any](db driver.Store[T], group string, attempts int) Job {
	roles, missing := driver.Get(db, "reconcile", "InboxRecords")
	name := "near-limit"
	if group != "" {
		name += ":" + group
	}
	f := store.RecordFilter{Group: group, States: []store.InboxState{store.InboxFailed, store.InboxProcessing}, MinAttempts: attempts}
	return Job{Name: name, Check: func(ctx context.Context, _ Window, found func(string)) error {
		if missing != nil {
			return missing
		}
		return eachRecord(ctx, roles.InboxRecords, f, func(r store.InboxRecord) {
			found(fmt.Sprintf("group %s: event %s has %d attempts", r.Group, r.Event, r.Attempts))
		})
	}}
}

// eachRecord calls fn for every matching record.
func eachRecord(ctx context.Context, db driver.InboxRecords, f store.RecordFilter, fn func(store.InboxRecord)) error {
	group, key := f.Group, waybill.ID{}
	for {
		page, err := db.ListRecords(ctx, f, group, key, pageSize)
		if err != nil {
			return err
		}
		for _, r := range page {
			fn(r)
			group, key = r.Group, r.Key
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

// Unrecorded delivers to a group the events that were delivered in the window
// and of which the group has no record, because the broker or a restored backup
// lost them. They are delivered to the group alone and under their own ids, so
// that a late original is not applied twice. historyRetention is the relay's
// retention of delivered events: purged events cannot be found. An event that
// fails in the group has a record from then on: set [inbox.Options.StoreEvent],
// so that the group retries it by itself.
func Unrecorded[T any](db driver.Store[T], group inbox.Consumer, historyRetention time.Duration) Job {
	j := UnrecordedReport(db, group.Name(), historyRetention, group.Handles)
	j.Repair = func(ctx context.Context, w Window) (fixed int, err error) {
		err = eachUnrecorded(ctx, db.Driver(), group.Name(), w, group.Handles, func(ev waybill.Event) error {
			// Passed as a redelivery: the attempt is counted before the handler
			// runs, because the event may have killed its consumer.
			result := group.Deliver(ctx, []waybill.Delivery{{Event: ev, Attempt: 2}})
			if len(result) != 1 || result[0] != nil {
				return fmt.Errorf("event %s: %w", ev.ID, errors.Join(result...))
			}
			fixed++
			return nil
		})
		return fixed, err
	}
	return j
}

// UnrecordedReport only reports the events that [Unrecorded] would deliver to a
// group of that name: for groups in another process. handles selects the
// group's events; nil means all.
func UnrecordedReport[T any](db driver.Store[T], group string, historyRetention time.Duration, handles func(aggregateType, eventType string) bool) Job {
	roles, missing := driver.Get(db, "reconcile", "HistoryAudit", "InboxRecords")
	return Job{
		Name: "unrecorded:" + group, LookBack: time.Hour, MinAge: 5 * time.Minute, TraceRetention: historyRetention,
		Check: func(ctx context.Context, w Window, found func(string)) error {
			if missing != nil {
				return missing
			}
			return eachUnrecorded(ctx, roles, group, w, handles, func(ev waybill.Event) error {
				found(fmt.Sprintf("group %s: event %s (%s) was delivered and not recorded", group, ev.ID, ev.Type))
				return nil
			})
		},
	}
}

// eachUnrecorded calls fn for every event of a group that has no record,
// neither under its id nor under its dedup key. It continues after errors of
// fn, and returns the first few.
func eachUnrecorded[T any](
	ctx context.Context, db driver.Roles[T], group string, w Window, handles func(aggregateType, eventType string) bool, fn func(waybill.Event) error,
) error {
	var errs []error
	for span := (driver.HistorySpan{From: w.From, To: w.To}); ; {
		page, err := db.HistoryAudit.DeliveredWithoutRecord(ctx, group, span, pageSize)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for i := range page {
			ev := page[i].Event
			span.From, span.After = page[i].EndedAt, ev.ID
			missing, err := isMissing(ctx, db, group, handles, &ev)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			if !missing {
				continue
			}
			if err := fn(ev); err != nil && len(errs) < maxErrors {
				errs = append(errs, err)
			}
			if ctx.Err() != nil {
				return errors.Join(append(errs, context.Cause(ctx))...)
			}
		}
		if len(page) < pageSize {
			return errors.Join(errs...)
		}
	}
}

// isMissing reports whether a group handles an event that has no record under
// its id, and has no record of it under its dedup key either.
func isMissing[T any](
	ctx context.Context, db driver.Roles[T], group string, handles func(aggregateType, eventType string) bool, ev *waybill.Event,
) (bool, error) {
	if handles != nil && !handles(ev.AggregateType, ev.Type) {
		return false, nil
	}
	if ev.DedupKey == "" {
		return true, nil
	}
	_, there, err := db.InboxRecords.FindRecord(ctx, group, inbox.DedupID(ev.TenantID, ev.DedupKey))
	return !there, err
}

// maxErrors is the number of errors that a run returns.
const maxErrors = 10
