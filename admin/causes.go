package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	if causes, ok := unwrapped(d.db).(driver.Causes); ok {
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
	return d.knownCauses(ctx, limit, driver.Causes.CountCauses)
}

// KnownCausesUpTo is [Outbox.KnownCauses], except that the dead letters of
// each cause may be counted only up to most: Letters is then most or more. So
// is Unknown.
func (d *Outbox) KnownCausesUpTo(ctx context.Context, limit int, most int64) (Causes, error) {
	return d.knownCauses(ctx, limit, func(db driver.Causes, ctx context.Context, limit int) ([]driver.CauseCount, error) {
		if bounded, ok := db.(driver.Bounded); ok {
			return bounded.CountCausesUpTo(ctx, limit, most)
		}
		return db.CountCauses(ctx, limit)
	})
}

func (d *Outbox) knownCauses(
	ctx context.Context, limit int, count func(db driver.Causes, ctx context.Context, limit int) ([]driver.CauseCount, error),
) (Causes, error) {
	db, err := d.causes()
	if err != nil {
		return Causes{}, err
	}
	if limit <= 0 {
		limit = d.cfg.BatchSize
	}
	counts, err := count(db, ctx, limit+1) // one of them may be unknown
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
