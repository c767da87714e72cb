package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// errEnough is returned to Find when the limit is reached.
var errEnough = errors.New("reconcile: Job.Limit reached")

// errNoKey reports an event without an identity.
var errNoKey = errors.New("neither a dedup key nor an aggregate id")

// found collects the events that Find yields. Nothing is sent while Find runs,
// because its rows may be open on the only connection.
type found struct {
	origin waybill.Origin
	known  map[waybill.ID]struct{} // sent or found before
	limit  int
	rep    *Report
	evs    []waybill.Event
	errs   []error
}

// missing adds an event that Find yields.
func (f *found) missing(ev waybill.Event) error {
	if len(f.evs) >= f.limit {
		f.rep.More = true
		return errEnough
	}
	f.rep.Found++
	ev = eventfill.Origin(f.origin, ev)
	ev.ID = waybill.ID{} // a new event, even if it comes from the history
	if ev.DedupKey == "" && ev.AggregateID == "" {
		f.fail(ev, errNoKey)
		return nil
	}
	if ev.DedupKey == "" {
		ev.DedupKey = ev.NaturalKey()
	}
	if err := ev.Validate(); err != nil {
		f.fail(ev, err)
		return nil
	}
	key := keyOf(ev)
	if _, known := f.known[key]; known {
		f.rep.Skipped++
		return nil
	}
	f.known[key] = struct{}{}
	f.evs = append(f.evs, eventfill.Defaults(ev)) // a copy: Find may reuse its buffers
	return nil
}

// fail records an event that cannot be sent.
func (f *found) fail(ev waybill.Event, err error) {
	f.rep.Failed++
	err = fmt.Errorf("event %s of %s %q: %w", ev.Type, ev.AggregateType, ev.AggregateID, err)
	f.rep.note(err.Error())
	f.errs = append(f.errs, err)
}

// failed returns an error if an event could not be sent.
func (f *found) failed() error {
	if len(f.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d could not be sent; the first: %w", f.rep.Failed, f.rep.Found, f.errs[0])
}

// keyOf returns the key under which an event is remembered.
func keyOf(ev waybill.Event) waybill.ID { return inbox.DedupID(ev.TenantID, ev.DedupKey) }

// forgetLimit is the number of keys deleted per batch.
const forgetLimit = 5000

// resend finds missing events and writes them again. Events found before Find
// failed are sent as well: they are missing.
func (r *Reconciler[T]) resend(ctx context.Context, j *Job, a driver.JobAttempt, rep *Report) error {
	f := &found{origin: waybill.OriginFrom(ctx), known: make(map[waybill.ID]struct{}), limit: j.Limit, rep: rep}
	if j.ResendAfter > 0 {
		sent, err := r.db.SentKeys(ctx, j.Name, j.ResendAfter)
		if err != nil {
			return err
		}
		for _, one := range sent {
			f.known[one.Key] = struct{}{}
		}
	}
	err := panics.Call(func() error { return j.Find(ctx, rep.Window, f.missing) })
	if err != nil && rep.More && errors.Is(err, errEnough) {
		err = nil
	}
	if rep.DryRun {
		rep.Events = f.evs
		return errors.Join(err, f.failed())
	}
	for batch := range slices.Chunk(f.evs, r.cfg.BatchSize) {
		if serr := r.send(ctx, j, a, f, batch); serr != nil {
			return errors.Join(err, serr)
		}
	}
	if ferr := r.forget(ctx, j); ferr != nil {
		return errors.Join(err, f.failed(), ferr)
	}
	return errors.Join(err, f.failed())
}

// forget deletes keys whose time has passed.
func (r *Reconciler[T]) forget(ctx context.Context, j *Job) error {
	for {
		n, err := r.db.ForgetSent(ctx, j.Name, max(j.ResendAfter, 0), forgetLimit)
		if err != nil || n < forgetLimit {
			return err
		}
	}
}

// send writes a batch, and each of its events separately if that fails: an
// event that the outbox rejects must not hold back the others. It returns an
// error if the run must end, because another node holds the job or nothing can
// be written.
func (r *Reconciler[T]) send(ctx context.Context, j *Job, a driver.JobAttempt, f *found, batch []waybill.Event) error {
	err := r.sendAll(ctx, j, a, f, batch)
	if err == nil || over(ctx, err) {
		return err
	}
	if len(batch) == 1 {
		f.fail(batch[0], err)
		return nil
	}
	refused := 0
	for _, ev := range batch {
		if err = r.sendAll(ctx, j, a, f, []waybill.Event{ev}); over(ctx, err) {
			return err
		}
		if err != nil {
			f.fail(ev, err)
			refused++
		}
	}
	if refused == len(batch) {
		return fmt.Errorf("none of %d events could be written: %w", refused, err)
	}
	return nil
}

// over reports whether an error ends the run. After an uncertain commit it is
// unknown which events were sent; the next run finds out.
func over(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, waybill.ErrLeaseLost) || errors.Is(err, waybill.ErrUncertain))
}

// restarts is the number of times a transaction is run again after a conflict.
const restarts = 10

// sendAll writes events and remembers them in one transaction, under the job's
// fence.
func (r *Reconciler[T]) sendAll(ctx context.Context, j *Job, a driver.JobAttempt, f *found, evs []waybill.Event) error {
	var receipts []outbox.Receipt
	send := func(ctx context.Context, tx T) (err error) {
		if receipts, err = r.box.WriteEach(ctx, tx, evs...); err != nil {
			return err
		}
		var sent []driver.Sent
		for i, receipt := range receipts {
			if receipt.Outcome == outbox.Written && j.ResendAfter > 0 {
				sent = append(sent, driver.Sent{Key: keyOf(evs[i]), Event: receipt.ID})
			}
		}
		held, err := r.db.RememberSent(ctx, tx, a, sent)
		if err == nil && !held {
			err = waybill.ErrLeaseLost
		}
		return err
	}
	err := r.box.InTx(ctx, send)
	restarter, _ := r.db.(driver.RetryClassifier)
	for n := 0; err != nil && n < restarts && restarter != nil && restarter.IsRetryable(err) && !over(ctx, err); n++ {
		err = r.box.InTx(ctx, send)
	}
	if err != nil {
		return err
	}
	for i, receipt := range receipts {
		if receipt.Outcome != outbox.Written {
			f.rep.Skipped++ // its key is pending, or a hook dropped it
			continue
		}
		f.rep.Sent++
		r.cfg.Logger.Debug("an event was sent again", slog.String(logkey.Job, j.Name), slog.String(logkey.EventID, receipt.ID.String()),
			slog.String(logkey.EventType, evs[i].Type), slog.String(logkey.AggregateType, evs[i].AggregateType), slog.String(logkey.AggregateID, evs[i].AggregateID),
			slog.String(logkey.DedupKey, evs[i].DedupKey), slog.String(logkey.CorrelationID, evs[i].CorrelationID))
	}
	return nil
}
