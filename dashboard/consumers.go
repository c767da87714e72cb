package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// groupsView is the data of the page of consumer groups.
type groupsView struct {
	Stats   []groupRow
	Group   string
	State   string
	States  []choice
	Records []store.InboxRecord
	// NextGroup and NextKey begin the next page; empty on the last page.
	NextGroup, NextKey string
	// Dead is the number of dead records of the chosen group.
	Dead int64
}

// groupRow is a group with its progress.
type groupRow struct {
	store.GroupStats
	admin.GroupProgress
}

// groupsShown is the maximum number of groups whose progress is read.
const groupsShown = 50

// groupRows returns all groups of the database.
func (d *Dashboard) groupRows(ctx context.Context) ([]groupRow, error) {
	stats, err := d.cfg.Inbox.Stats(ctx, true)
	if err != nil {
		return nil, err
	}
	rows := make([]groupRow, len(stats))
	var names []string
	for i, g := range stats {
		rows[i].GroupStats = g
		if i < groupsShown {
			names = append(names, g.Group)
		}
	}
	progress, err := d.cfg.Inbox.Progress(ctx, names...)
	for i, p := range progress {
		rows[i].GroupProgress = p
	}
	return rows, err
}

func (d *Dashboard) groups(p *page) (any, error) {
	p.Title = "Consumer groups"
	rows, err := d.groupRows(p.ctx)
	if err != nil {
		return nil, err
	}
	v := &groupsView{Stats: rows, Group: p.query("group"), State: p.query("state")}
	f := store.RecordFilter{Group: v.Group}
	for _, s := range []store.InboxState{store.InboxFailed, store.InboxDead, store.InboxProcessing} {
		v.States = append(v.States, choice{s.String(), s.String(), s.String() == v.State})
		if s.String() == v.State {
			f.States = []store.InboxState{s}
		}
	}
	if v.State != "" && f.States == nil {
		return nil, refuse(http.StatusBadRequest, "The state must be failed, dead or processing.")
	}
	var after waybill.ID
	if text := p.query("after_key"); text != "" {
		if after, err = waybill.ParseID(text); err != nil {
			return nil, refuse(http.StatusBadRequest, "The position of the page is not an id.")
		}
	}
	found, err := d.cfg.Inbox.List(p.ctx, f, p.query("after_group"), after, pageRows)
	if err != nil {
		return nil, err
	}
	v.Records = found.Records
	if found.More {
		v.NextGroup, v.NextKey = found.Group, found.Key.String()
	}
	for _, g := range rows {
		if g.GroupStats.Group == v.Group {
			v.Dead = g.Dead
		}
	}
	return v, nil
}

// keysView is the data of the page of idempotency keys.
type keysView struct {
	Stats  store.KeyStats
	State  string
	States []choice
	Filter store.KeyFilter
	Keys   []keyRow
	// More means that there are more keys than are shown.
	More bool
}

type keyRow struct {
	store.KeyRecord
	// Hash identifies the key as the log does. Keys are secrets: knowing one
	// gives access to its answer.
	Hash string
	// Lapsed means that the lease of a key in progress has expired.
	Lapsed bool
}

func (d *Dashboard) keys(p *page) (any, error) {
	p.Title = "Idempotency keys"
	v := &keysView{State: p.query("state"), Filter: store.KeyFilter{Tenant: p.query("tenant_id"), Operation: p.query("operation")}}
	for _, s := range []store.KeyState{store.KeyProcessing, store.KeyFailed, store.KeyUncertain} {
		v.States = append(v.States, choice{s.String(), s.String(), s.String() == v.State})
		if s.String() == v.State {
			v.Filter.States = []store.KeyState{s}
		}
	}
	if v.State != "" && v.Filter.States == nil {
		return nil, refuse(http.StatusBadRequest, "The state must be processing, failed or uncertain.")
	}
	var err error
	if v.Stats, err = d.cfg.Keys.Stats(p.ctx); err != nil {
		return nil, err
	}
	found, err := d.cfg.Keys.List(p.ctx, v.Filter, store.KeyID{}, pageRows)
	if err != nil {
		return nil, err
	}
	v.More = found.More
	for _, rec := range found.Records {
		sum := sha256.Sum256([]byte(rec.Key))
		row := keyRow{KeyRecord: rec, Hash: "sha256:" + hex.EncodeToString(sum[:4])}
		row.Lapsed = rec.State == store.KeyProcessing && !rec.LeaseUntil.IsZero() && rec.LeaseUntil.Before(rec.Now)
		v.Keys = append(v.Keys, row)
	}
	return v, nil
}
