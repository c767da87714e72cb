package view

import (
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
)

// Cause is a group of dead letters with one cause.
type Cause struct {
	ID      string     `json:"id"`
	Text    string     `json:"text"`
	Letters int64      `json:"letters"`
	First   time.Time  `json:"first"`
	Last    time.Time  `json:"last"`
	Example waybill.ID `json:"example"`
}

// Causes are the causes of dead letters.
type Causes struct {
	Causes  []Cause `json:"causes"`
	More    bool    `json:"more"`
	Unknown int64   `json:"unknown"`
}

// CausesOf converts causes.
func CausesOf(c admin.Causes) Causes {
	v := Causes{Causes: []Cause{}, More: c.More, Unknown: c.Unknown}
	for _, g := range c.Groups {
		v.Causes = append(v.Causes, Cause{ID: g.ID, Text: g.Text, Letters: g.Letters, First: g.First, Last: g.Last, Example: g.Example.ID})
	}
	return v
}
