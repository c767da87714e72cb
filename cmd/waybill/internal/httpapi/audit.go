package httpapi

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
)

// actor returns the name of who makes a request, which has the token: the user
// that the proxy in front of the API has authenticated, or the token.
func (a *api) actor(r *http.Request) string {
	if header := a.http.ActorHeader; header != "" {
		if name := strings.TrimSpace(r.Header.Get(header)); name != "" {
			return name
		}
	}
	return "http.token"
}

// by returns a request whose changes are recorded as those of its actor.
func (a *api) by(r *http.Request) *http.Request {
	return r.WithContext(admin.WithActor(r.Context(), admin.Actor{Name: a.actor(r), Via: "http", Address: r.RemoteAddr}))
}

func (a *api) audit(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := admin.AuditFilter{Actor: q.Get("actor"), Action: q.Get("action")}
	if f.Since, f.Until, err = bounds(q); err != nil {
		return nil, err
	}
	before, err := view.ParseAuditCursor(q.Get("after"))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "after: "+err.Error())
	}
	page, err := one.Audit.List(r.Context(), f, before, n)
	if err != nil {
		return nil, err
	}
	return view.AuditOf(page), nil
}

// bounds returns the times since and until of a request.
func bounds(q url.Values) (since, until time.Time, err error) {
	for name, to := range map[string]*time.Time{"since": &since, "until": &until} {
		if text := q.Get(name); text != "" {
			if *to, err = time.Parse(time.RFC3339, text); err != nil {
				return since, until, refuse(http.StatusBadRequest, name+": must be a time such as 2026-01-31T15:00:00Z")
			}
		}
	}
	return since, until, nil
}
