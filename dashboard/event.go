package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// payloadBytes is the maximum length of a payload on a page.
const payloadBytes = 64 << 10

// eventView is the data of the page of one event.
type eventView struct {
	admin.Journey
	// Facts are the fields of the event that are set.
	Facts []fact
	// Groups are the records of consumer groups.
	Groups []store.InboxRecord
	// HasGroups means that records were looked for.
	HasGroups bool
	// Payload and Headers are shown only if Shown is set.
	Shown   bool
	Payload string
	Omitted string
	Headers []fact
	// Places are where the event can be changed.
	Places []held
}

type fact struct{ Name, Text string }

// held is an event in a place where it is dead or blocks its aggregate.
type held struct {
	Destination, Title string
	Dead, Holds        bool
}

func (d *Dashboard) event(p *page) (any, error) {
	p.Title = "Event"
	id, err := waybill.ParseID(p.r.PathValue("id"))
	if err != nil {
		return nil, refuse(http.StatusNotFound, "This is not the id of an event.")
	}
	v := &eventView{Shown: d.cfg.ShowPayloads}
	if v.Journey, err = d.cfg.Outbox.Journey(p.ctx, id); err != nil {
		return nil, err
	}
	v.Facts = facts(&v.Event)
	v.Places = places(&v.Journey)
	if v.HasGroups = d.cfg.Inbox != nil; v.HasGroups {
		if v.Groups, err = d.records(p.ctx, id); err != nil {
			return nil, err
		}
	}
	if v.Shown {
		v.Payload, v.Omitted = payload(&v.Event)
		for _, name := range slices.Sorted(maps.Keys(v.Event.Headers)) {
			v.Headers = append(v.Headers, fact{name, v.Event.Headers[name]})
		}
	}
	return v, nil
}

// records returns the records of an event in the consumer groups of the
// database: the configured ones, and those that have failures.
func (d *Dashboard) records(ctx context.Context, id waybill.ID) ([]store.InboxRecord, error) {
	s, err := d.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(d.cfg.Groups)
	for _, g := range s.Groups {
		if !slices.Contains(names, g.Group) {
			names = append(names, g.Group)
		}
	}
	var out []store.InboxRecord
	for _, name := range names[:min(len(names), pageRows)] {
		rec, err := d.cfg.Inbox.Find(ctx, name, id)
		switch {
		case errors.Is(err, admin.ErrNotFound):
		case err != nil:
			return nil, err
		default:
			out = append(out, rec)
		}
	}
	return out, nil
}

// facts returns the fields of an event.
func facts(e *waybill.Event) []fact {
	var out []fact
	for _, f := range []fact{
		{"Type", e.Type},
		{"Tenant", e.TenantID},
		{"Topic", e.Topic},
		{"Routing key", e.RoutingKey},
		{"Schema", e.SchemaID},
		{"Dedup key", e.DedupKey},
		{"Correlation", e.CorrelationID},
		{"Causation", e.CausationID},
		{"Content type", e.ContentType},
	} {
		if f.Text != "" {
			out = append(out, f)
		}
	}
	if e.Priority != 0 {
		out = append(out, fact{"Priority", fmt.Sprint(e.Priority)})
	}
	return append(out, fact{"Payload", one(int64(len(e.Payload)), "byte")})
}

// places returns where an event is dead or blocks its aggregate.
func places(j *admin.Journey) []held {
	var out []held
	at := func(name, title string, r *store.Record) {
		h := held{Destination: name, Title: title, Dead: r.State == store.Dead, Holds: r.Holds && (r.State == store.Dead || r.State == store.Delayed)}
		if h.Dead || h.Holds {
			out = append(out, h)
		}
	}
	own := j.State != store.Delivered
	for i := range j.Waiting {
		w := &j.Waiting[i]
		at(w.Destination.Name, "destination "+w.Destination.Name, &w.Record)
		if w.Seq == j.Seq && w.State == j.State && w.EndedAt.Equal(j.EndedAt) {
			own = false // the record is that of the destination
		}
	}
	if own {
		at("", "the outbox", &j.Record)
	}
	return out
}

// payload returns the payload of an event as a text, and what is omitted.
func payload(e *waybill.Event) (text, omitted string) {
	raw := e.Payload
	if json.Valid(raw) {
		var pretty bytes.Buffer
		if json.Indent(&pretty, raw, "", "  ") == nil && pretty.Len() < 4*payloadBytes {
			raw = pretty.Bytes()
		}
	}
	if !utf8.Valid(raw) {
		return "", fmt.Sprintf("The payload is not text (%s).", one(int64(len(raw)), "byte"))
	}
	if len(raw) > payloadBytes {
		return strings.ToValidUTF8(string(raw[:payloadBytes]), ""), fmt.Sprintf("The first %d KiB of the payload.", payloadBytes>>10)
	}
	return string(raw), ""
}
