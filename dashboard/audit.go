package dashboard

import (
	"net/http"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
)

// auditView is the data of the page of the audit.
type auditView struct {
	Filter  admin.AuditFilter
	Records []admin.AuditRecord
	// NextAt and NextID begin the next page; empty on the last page.
	NextAt, NextID string
}

func (d *Dashboard) audit(p *page) (any, error) {
	p.Title = "Audit"
	v := &auditView{Filter: admin.AuditFilter{Actor: p.query("actor"), Action: p.query("action")}}
	var before admin.AuditCursor
	if text := p.query("after_id"); text != "" {
		var err error
		if before.At, err = time.Parse(time.RFC3339Nano, p.query("after_at")); err == nil {
			before.ID, err = waybill.ParseID(text)
		}
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "The position of the page is not valid.")
		}
	}
	found, err := d.cfg.Audit.List(p.ctx, v.Filter, before, pageRows)
	if err != nil {
		return nil, err
	}
	v.Records = found.Records
	if found.More {
		v.NextAt, v.NextID = found.Next.At.Format(time.RFC3339Nano), found.Next.ID.String()
	}
	return v, nil
}

// actor returns who makes a request, for the audit.
func (d *Dashboard) actor(r *http.Request) admin.Actor {
	a := admin.Actor{Name: "unknown", Via: "dashboard", Address: r.RemoteAddr}
	if d.cfg.Actor != nil {
		a.Name = d.cfg.Actor(r)
	}
	return a
}
