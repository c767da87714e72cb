package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// CauseText returns an error without its numbers, ids and quoted parts.
func CauseText(text string) string { return driver.CauseText(text) }

// CauseOf returns the id of the cause of an error.
func CauseOf(text string) string { return driver.CauseOf(text) }

// Cause is a group of dead letters that have died for the same reason: their
// errors differ only in numbers, ids and quoted parts.
type Cause struct {
	// ID identifies the cause: the same errors have the same id in every store.
	ID string
	// Text is the error without its numbers, ids and quoted parts.
	Text string
	// Letters is the number of dead letters.
	Letters int64
	// First and Last are when the first and the last of them died.
	First, Last time.Time
	// Example is the oldest of them.
	Example store.Record
}

// Causes are the causes of dead letters.
type Causes struct {
	// Groups are the causes, the most frequent first.
	Groups []Cause
	// More reports that there may be further causes.
	More bool
	// Unknown is the number of dead letters that have no cause yet.
	Unknown int64
}

// ErrNoCauses means that the store does not keep the causes of dead letters.
var ErrNoCauses = errors.New("admin: the store does not keep the causes of dead letters")

// maxNoted is the maximum number of dead letters that get their cause by one
// call of [Outbox.Causes].
const maxNoted = 5000

// causes returns the part of the store that keeps causes.
func (d *Outbox) causes() (driver.Causes, error) {
	var db any = d.db
	if b, ok := db.(backlog); ok {
		db = b.Backlog
	}
	if causes, ok := db.(driver.Causes); ok {
		return causes, nil
	}
	return nil, ErrNoCauses
}

// Causes returns at most limit causes of dead letters. Relays compute the
// causes of dead letters within seconds, and of those of older programs when
// they purge. Causes first computes those of at most 5000 that have none, if
// the account may change dead letters. The others are counted as unknown.
func (d *Outbox) Causes(ctx context.Context, limit int) (Causes, error) {
	db, err := d.causes()
	if err != nil {
		return Causes{}, err
	}
	for noted := 0; noted < maxNoted; {
		n, err := db.NoteCauses(ctx, d.cfg.BatchSize)
		noted += n
		// An account that only reads may not do this.
		if err != nil || n < d.cfg.BatchSize {
			break
		}
	}
	return d.KnownCauses(ctx, limit)
}

// KnownCauses is [Outbox.Causes] without computing the causes of dead letters
// that have none: it changes nothing.
func (d *Outbox) KnownCauses(ctx context.Context, limit int) (Causes, error) {
	db, err := d.causes()
	if err != nil {
		return Causes{}, err
	}
	if limit <= 0 {
		limit = d.cfg.BatchSize
	}
	counts, err := db.CountCauses(ctx, limit+1) // one of them may be unknown
	if err != nil {
		return Causes{}, fmt.Errorf("admin: counting causes: %w", err)
	}
	var out Causes
	for _, c := range counts {
		if c.ID == "" {
			out.Unknown = c.Letters
			continue
		}
		if len(out.Groups) == limit {
			out.More = true
			break
		}
		g := Cause{ID: c.ID, Letters: c.Letters, First: c.First, Last: c.Last}
		first, err := db.ListCause(ctx, c.ID, 0, 1)
		if err != nil {
			return Causes{}, fmt.Errorf("admin: cause %s: %w", c.ID, err)
		}
		if len(first) > 0 {
			g.Example, g.Text = first[0], driver.CauseText(first[0].LastError)
			out.Groups = append(out.Groups, g)
		}
	}
	return out, nil
}

// ListCause returns dead letters with a cause, oldest first: those after a
// position (0 for the first page), and at most limit of them.
func (d *Outbox) ListCause(ctx context.Context, cause string, after int64, limit int) (Page, error) {
	db, err := d.causes()
	if err != nil {
		return Page{}, err
	}
	if limit <= 0 {
		limit = d.cfg.BatchSize
	}
	records, err := db.ListCause(ctx, cause, after, limit)
	if err != nil {
		return Page{}, fmt.Errorf("admin: listing the dead letters of cause %s: %w", cause, err)
	}
	p := Page{Records: records}
	if len(records) == limit {
		p.Next = records[len(records)-1].Seq
	}
	return p, nil
}

// manyCauses is more than the number of causes of any outbox.
const manyCauses = 100_000

// CountCause returns the number of dead letters with a cause.
func (d *Outbox) CountCause(ctx context.Context, cause string) (int64, error) {
	db, err := d.causes()
	if err != nil {
		return 0, err
	}
	counts, err := db.CountCauses(ctx, manyCauses)
	if err != nil {
		return 0, fmt.Errorf("admin: counting causes: %w", err)
	}
	for _, c := range counts {
		if c.ID == cause && cause != "" {
			return c.Letters, nil
		}
	}
	return 0, nil
}

// ReplayCause replays the dead letters with a cause, oldest first, in batches,
// at most limit of them; 0 means all that existed at the start. It calls
// progress, if not nil, after every batch.
func (d *Outbox) ReplayCause(ctx context.Context, cause string, limit int64, progress func(Progress)) (Replayed, error) {
	var out Replayed
	ctx = audited(ctx, "replay", d.destination, causeTarget(cause, limit))
	err := d.eachOf(ctx, cause, limit, progress, func(ids []waybill.ID) error {
		r, err := d.Replay(ctx, ids...)
		out.IDs, out.Refused = append(out.IDs, r.IDs...), append(out.Refused, r.Refused...)
		return err
	})
	return out, err
}

// DiscardCause discards the dead letters with a cause, in the manner of
// [Outbox.ReplayCause].
func (d *Outbox) DiscardCause(ctx context.Context, cause string, limit int64, progress func(Progress)) ([]waybill.ID, error) {
	var out []waybill.ID
	ctx = audited(ctx, "discard", d.destination, causeTarget(cause, limit))
	err := d.eachOf(ctx, cause, limit, progress, func(ids []waybill.ID) error {
		gone, err := d.Discard(ctx, ids...)
		out = append(out, gone...)
		return err
	})
	return out, err
}

func causeTarget(cause string, limit int64) string {
	text := ""
	if limit > 0 {
		text = fmt.Sprint(limit)
	}
	return fields("", "cause", cause, "limit", text)
}

// eachOf calls fn with the ids of the dead letters with a cause.
func (d *Outbox) eachOf(ctx context.Context, cause string, limit int64, progress func(Progress), fn func([]waybill.ID) error) error {
	total, err := d.CountCause(ctx, cause)
	if err != nil {
		return err
	}
	if limit > 0 {
		total = min(total, limit)
	}
	list := func(after int64, n int) (Page, error) { return d.ListCause(ctx, cause, after, n) }
	return d.batches(ctx, list, total, progress, fn)
}
