package admin

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Inbox inspects and maintains consumer groups: failed records, records close
// to the attempt limit, dead records. Its methods may be called concurrently,
// and while the groups work.
type Inbox struct {
	db driver.InboxRecords
	// outbox is that of the same database; nil if the store has none.
	outbox driver.OutboxAdmin
	cfg    Config
}

// NewInbox returns the administrative functions of the consumer groups of a
// database.
func NewInbox[T any](db driver.Store[T], cfg Config) (*Inbox, error) {
	roles, err := driver.Get(db, "admin", "InboxRecords")
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.complete(); err != nil {
		return nil, err
	}
	return &Inbox{db: roles.InboxRecords, outbox: roles.OutboxAdmin, cfg: cfg}, nil
}

// Stats returns the groups' counts, and reports them to the observer. Groups
// without failures are omitted unless all is set; that reads every record.
func (g *Inbox) Stats(ctx context.Context, all bool) ([]store.GroupStats, error) {
	stats, err := g.db.GroupStats(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("admin: groups: %w", err)
	}
	if g.cfg.Observe.Groups != nil {
		out := make([]observe.Group, len(stats))
		for i, s := range stats {
			out[i] = observe.Group(s)
		}
		g.cfg.Observe.Groups(observe.GroupsInfo{Groups: out})
	}
	return stats, nil
}

// RecordPage is a page of records, and the start of the next page.
type RecordPage struct {
	Records []store.InboxRecord
	// Group and Key are those of the last record; pass them to List for the
	// next page. More reports that there may be one.
	Group string
	Key   waybill.ID
	More  bool
}

// List returns matching records in the order of group and key, after the given
// group and key; zero values for the first page.
func (g *Inbox) List(ctx context.Context, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int) (RecordPage, error) {
	records, err := g.db.ListRecords(ctx, f, afterGroup, afterKey, limit)
	if err != nil {
		return RecordPage{}, fmt.Errorf("admin: listing records: %w", err)
	}
	page := RecordPage{Records: records, Group: afterGroup, Key: afterKey, More: len(records) == limit}
	if n := len(records); n > 0 {
		page.Group, page.Key = records[n-1].Group, records[n-1].Key
	}
	return page, nil
}

// Near returns failed records with at most left attempts left, of a group whose
// MaxAttempts is maxAttempts.
func (g *Inbox) Near(ctx context.Context, group string, maxAttempts, left, limit int) ([]store.InboxRecord, error) {
	page, err := g.List(ctx, store.RecordFilter{
		Group: group, States: []store.InboxState{store.InboxFailed, store.InboxProcessing}, MinAttempts: max(maxAttempts-left, 1),
	}, group, waybill.ID{}, limit)
	return page.Records, err
}

// Find returns the record of an event in a group.
func (g *Inbox) Find(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, error) {
	rec, ok, err := g.db.FindRecord(ctx, group, key)
	switch {
	case err != nil:
		return store.InboxRecord{}, fmt.Errorf("admin: finding a record: %w", err)
	case !ok:
		return store.InboxRecord{}, ErrNotFound
	}
	return rec, nil
}

// Redrive resets the attempts of dead and failed records of a group. A record
// is retried when its event is delivered again or, if the group stores its
// events, by inbox.Inbox.Run. It returns the number of records.
func (g *Inbox) Redrive(ctx context.Context, group string, keys ...waybill.ID) (int, error) {
	done := 0
	ctx = audited(ctx, "redrive", "", fields("", "group", group, "keys", idsTarget(keys)))
	for len(keys) > 0 {
		n := min(len(keys), g.cfg.BatchSize)
		driven, err := g.db.Redrive(ctx, group, keys[:n], n)
		if err != nil {
			return done, fmt.Errorf("admin: redriving records: %w", err)
		}
		done += driven
		keys = keys[n:]
	}
	return done, nil
}

// RedriveAll redrives the dead records of a group, in batches, as many as there
// were at the start.
func (g *Inbox) RedriveAll(ctx context.Context, group string, progress func(Progress)) (int, error) {
	stats, err := g.Stats(ctx, false)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, s := range stats {
		if s.Group == group {
			total = s.Dead
		}
	}
	done := 0
	ctx = audited(ctx, "redrive", "", fields("", "group", group))
	for int64(done) < total {
		n, err := g.db.Redrive(ctx, group, nil, min(g.cfg.BatchSize, int(total)-done))
		if err != nil {
			return done, fmt.Errorf("admin: redriving records: %w", err)
		}
		if n == 0 {
			break
		}
		done += n
		if progress != nil {
			progress(Progress{Done: int64(done), Total: total})
		}
	}
	return done, nil
}
