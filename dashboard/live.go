package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// writeTimeout is the time limit for a write to the client of a live page.
const writeTimeout = 10 * time.Second

// live sends the changing parts of the overview as server-sent events, until
// the client leaves or the dashboard is closed.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) {
	select {
	case d.streams <- struct{}{}:
		defer func() { <-d.streams }()
	default:
		d.fail(w, r, refuse(http.StatusServiceUnavailable, "Too many overviews are open. Reload this one."))
		return
	}
	to := http.NewResponseController(w)
	// The time limits of the server are those of an ordinary answer. A server
	// that does not permit others closes the stream, and the browser opens it
	// again.
	_ = to.SetReadDeadline(time.Time{})
	tick := time.NewTicker(d.cfg.Interval)
	defer tick.Stop()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	var last []byte
	for {
		text, err := d.update(w, r)
		if err != nil {
			text = []byte(`{"problem":true}`)
		}
		line := []byte(": unchanged\n\n")
		if !bytes.Equal(text, last) {
			line, last = append(append([]byte("data: "), text...), "\n\n"...), text
		}
		_ = to.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(line); err != nil {
			return
		}
		if err := to.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-d.closed:
			return
		case <-tick.C:
		}
	}
}

// update returns the changing parts of the overview: HTML by the id of its
// element, as JSON.
func (d *Dashboard) update(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.Context(), d.cfg.QueryTimeout)
	defer cancel()
	s, err := d.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	p := &page{d: d, r: r, ctx: ctx, Screen: "overview", Base: "./", Site: d.cfg.Title, Now: s.At, Data: s}
	if d.cfg.Allow != nil {
		p.Token = csrfToken(secret(w, r))
	}
	parts := make(map[string]string)
	for _, name := range []string{"problems", "numbers", "throughput", "backlogs"} {
		var text bytes.Buffer
		if err := d.pages["overview"].ExecuteTemplate(&text, name, p); err != nil {
			return nil, errors.New("dashboard: " + err.Error())
		}
		parts[name] = text.String()
	}
	return json.Marshal(parts)
}
