package view

import (
	"errors"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store/driver"
)

// AuditRecord is a change of an operator.
type AuditRecord struct {
	ID          waybill.ID `json:"id"`
	At          time.Time  `json:"at"`
	Actor       string     `json:"actor"`
	Via         string     `json:"via"`
	Address     string     `json:"address,omitempty"`
	Action      string     `json:"action"`
	Destination string     `json:"destination,omitempty"`
	Target      string     `json:"target,omitempty"`
	Count       int64      `json:"count"`
}

// AuditPage is a page of the audit. Next is the position after which the next
// page begins; it is empty on the last page.
type AuditPage struct {
	Records []AuditRecord `json:"records"`
	Next    string        `json:"next,omitempty"`
}

// AuditOf converts a page of the audit.
func AuditOf(p admin.AuditPage) AuditPage {
	v := AuditPage{Records: []AuditRecord{}}
	for _, r := range p.Records {
		v.Records = append(v.Records, AuditRecord(r))
	}
	if p.More {
		v.Next = p.Next.At.Format(time.RFC3339Nano) + "," + p.Next.ID.String()
	}
	return v
}

// ParseAuditCursor reads the position of a page; empty: the first one.
func ParseAuditCursor(text string) (driver.AuditCursor, error) {
	if text == "" {
		return driver.AuditCursor{}, nil
	}
	at, id, _ := strings.Cut(text, ",")
	var c driver.AuditCursor
	var err error
	if c.At, err = time.Parse(time.RFC3339Nano, at); err == nil {
		c.ID, err = waybill.ParseID(id)
	}
	if err != nil {
		return driver.AuditCursor{}, errors.New("must be the next position of the previous page")
	}
	return c, nil
}
