package dashboard

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Action is a change that the dashboard can make.
type Action string

// The actions.
const (
	// Replay delivers dead letters again.
	Replay Action = "replay"
	// Discard deletes dead letters.
	Discard Action = "discard"
	// Unblock lets an aggregate continue without one of its events.
	Unblock Action = "unblock"
	// Pause pauses a destination.
	Pause Action = "pause"
	// Resume ends the pause of a destination.
	Resume Action = "resume"
	// Probe tries an unavailable destination now.
	Probe Action = "probe"
	// Redrive lets failed and dead records of a consumer group be retried.
	Redrive Action = "redrive"
)

// changeTimeout is the time limit of a change. It does not end with the
// request: a second click makes a browser cancel the first request.
const changeTimeout = time.Minute

// csrfCookie holds a random text that only this browser has.
const csrfCookie = "waybill-dashboard"

// secret returns the text of the cookie, and sets the cookie if the browser has
// none.
func secret(w http.ResponseWriter, r *http.Request) string {
	if c, err := r.Cookie(csrfCookie); err == nil && len(c.Value) >= 26 {
		return c.Value
	}
	text := random()
	http.SetCookie(w, &http.Cookie{Name: csrfCookie, Value: text, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil})
	return text
}

// csrfToken returns the text that forms repeat. It is derived from the cookie,
// so every node of a service accepts it.
func csrfToken(secret string) string {
	sum := sha256.Sum256([]byte("waybill dashboard form " + secret))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// redirect is the answer of a screen that is at another address, from the root
// of the dashboard.
type redirect struct{ to string }

func (r *redirect) Error() string { return "moved to " + r.to }

// result is the result of a change.
type result struct {
	text   string
	failed bool
}

// results are the results of the latest forms, by nonce: a form that is sent
// twice makes one change.
type results struct {
	mu    sync.Mutex
	known map[string]*outcome
	order []string
}

// outcome is the result of a form; done is closed when it is known.
type outcome struct {
	done   chan struct{}
	result result
}

// resultsKept is the number of forms whose results are known.
const resultsKept = 1000

// begin returns the outcome of a form, and whether the caller has to make the
// change.
func (s *results) begin(nonce string) (*outcome, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.known[nonce]; ok {
		return o, false
	}
	if s.known == nil {
		s.known = make(map[string]*outcome)
	}
	if len(s.order) >= resultsKept {
		delete(s.known, s.order[0])
		s.order = s.order[1:]
	}
	o := &outcome{done: make(chan struct{})}
	s.known[nonce], s.order = o, append(s.order, nonce)
	return o, true
}

// of returns the result of a form, if it is known.
func (s *results) of(nonce string) (result, bool) {
	s.mu.Lock()
	o := s.known[nonce]
	s.mu.Unlock()
	if o == nil {
		return result{}, false
	}
	select {
	case <-o.done:
		return o.result, true
	default:
		return result{}, false
	}
}

// doneParam is the parameter of the page that shows the result of a form.
const doneParam = "done"

// change answers a form.
func (d *Dashboard) change(w http.ResponseWriter, r *http.Request) {
	action := Action(r.PathValue("action"))
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	if err := d.permit(r, action); err != nil {
		d.fail(w, r, err)
		return
	}
	nonce := r.PostForm.Get("nonce")
	o, first := d.done.begin(nonce)
	if first {
		d.run(r, action, o)
	}
	select {
	case <-o.done:
	case <-r.Context().Done():
		return
	}
	back := r.PostForm.Get("back")
	if !strings.HasPrefix(back, "/") {
		back = "/"
	}
	sign := "?"
	if strings.Contains(back, "?") {
		sign = "&"
	}
	// The path of the form is /do/ACTION, and addresses are relative, so that
	// they never lead to another site.
	w.Header().Set("Location", "../"+strings.TrimLeft(back, "/")+sign+doneParam+"="+nonce)
	w.WriteHeader(http.StatusSeeOther)
}

// permit checks whether a form may make a change.
func (d *Dashboard) permit(r *http.Request, action Action) error {
	if d.cfg.Allow == nil {
		return refuse(http.StatusForbidden, "This dashboard is read-only.")
	}
	if d.changes()[action] == nil {
		return refuse(http.StatusNotFound, "There is no such change.")
	}
	if err := d.origins.Check(r); err != nil {
		return refuse(http.StatusForbidden, "Forms of other sites are not accepted.")
	}
	if err := r.ParseForm(); err != nil {
		return refuse(http.StatusBadRequest, "The form cannot be read.")
	}
	c, err := r.Cookie(csrfCookie)
	if err != nil || subtle.ConstantTimeCompare([]byte(csrfToken(c.Value)), []byte(r.PostForm.Get("token"))) != 1 {
		return refuse(http.StatusForbidden, "The form does not belong to this browser, or the cookie was lost. Open the page again.")
	}
	nonce := r.PostForm.Get("nonce")
	if len(nonce) < 20 || len(nonce) > 64 || strings.ContainsFunc(nonce, func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') }) {
		return refuse(http.StatusBadRequest, "The form is not complete. Open the page again.")
	}
	if err := d.cfg.Allow(r, action); err != nil {
		return refuse(http.StatusForbidden, "You may not do this: "+err.Error())
	}
	return nil
}

// run makes a change, and stores its result.
func (d *Dashboard) run(r *http.Request, action Action, o *outcome) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), changeTimeout)
	defer cancel()
	defer close(o.done)
	o.result = result{"The change was interrupted. Look at the tables before you repeat it.", true}
	text, err := d.changes()[action](admin.WithActor(ctx, d.actor(r)), form{r})
	d.forget()
	d.cfg.Logger.Info("change on the dashboard", slog.String(logkey.Operation, string(action)), slog.String(logkey.RemoteAddr, r.RemoteAddr), slog.Bool(logkey.Done, err == nil))
	if err != nil {
		o.result = result{d.explain(r, err).text, true}
		return
	}
	o.result = result{text, false}
}

// form is a form with a change.
type form struct{ r *http.Request }

func (f form) value(name string) string { return strings.TrimSpace(f.r.PostForm.Get(name)) }

// number returns an error if the number that was typed is not n.
func (f form) number(n int) error {
	typed, err := strconv.Atoi(strings.NewReplacer(",", "", " ", "").Replace(f.value("number")))
	if err != nil {
		return refuse(http.StatusBadRequest, "Nothing was changed: type the number of events, "+count(n)+", to confirm.")
	}
	if typed != n {
		return refuse(http.StatusConflict, fmt.Sprintf("Nothing was changed: the number typed is %s, and there are %s now.", count(typed), count(n)))
	}
	return nil
}

// ids returns the ids of a form.
func (f form) ids() ([]waybill.ID, error) {
	var out []waybill.ID
	for _, text := range f.r.PostForm["id"] {
		id, err := waybill.ParseID(text)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "Nothing was changed: the form has an invalid id.")
		}
		out = append(out, id)
	}
	return out, nil
}

// changes are the actions that the configuration has data for.
func (d *Dashboard) changes() map[Action]func(ctx context.Context, f form) (string, error) {
	all := map[Action]func(ctx context.Context, f form) (string, error){Replay: d.replay, Discard: d.discard, Unblock: d.unblock}
	if d.cfg.Destinations != nil {
		all[Pause], all[Resume], all[Probe] = d.pause, d.resume, d.probe
	}
	if d.cfg.Inbox != nil {
		all[Redrive] = d.redrive
	}
	return all
}

// letters returns the dead letters of a form: those with its ids, or all that
// match its selection up to the newest one that the page has seen. More than
// one need their number.
func (d *Dashboard) letters(ctx context.Context, f form) (*admin.Outbox, []waybill.ID, error) {
	s, err := selectionOf(f.value, time.Now())
	if err != nil {
		return nil, nil, err
	}
	rows, err := d.rows(ctx, s.Destination)
	if err != nil {
		return nil, nil, err
	}
	ids, err := f.ids()
	if err != nil {
		return nil, nil, err
	}
	if f.value("all") == "1" {
		if ids, err = s.upTo(ctx, rows, f.value("last")); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case len(ids) == 0:
		return nil, nil, refuse(http.StatusBadRequest, "Nothing was changed: no event is selected.")
	case f.value("all") == "1" || len(ids) > 1:
		err = f.number(len(ids))
	}
	return rows, ids, err
}

// upTo returns the ids of the selected dead letters, up to an id.
func (s selection) upTo(ctx context.Context, rows *admin.Outbox, last string) ([]waybill.ID, error) {
	found, err := s.scan(ctx, rows)
	if err != nil {
		return nil, err
	}
	var ids []waybill.ID
	for _, r := range s.of(found.Records) {
		ids = append(ids, r.ID)
		if r.ID.String() == last {
			break
		}
	}
	return ids, nil
}

func (d *Dashboard) replay(ctx context.Context, f form) (string, error) {
	rows, ids, err := d.letters(ctx, f)
	if err != nil {
		return "", err
	}
	done, err := rows.Replay(ctx, ids...)
	if err != nil {
		return "", err
	}
	text := "Replayed " + one(int64(len(done.IDs)), "event") + "."
	if n := len(done.Refused); n > 0 {
		text += fmt.Sprintf(" Still dead, because pending events have the same dedup key: %s.", one(int64(n), "event"))
	}
	if n := len(ids) - len(done.IDs) - len(done.Refused); n > 0 {
		text += fmt.Sprintf(" %s dead anymore.", wereNot(n))
	}
	return text, nil
}

func (d *Dashboard) discard(ctx context.Context, f form) (string, error) {
	rows, ids, err := d.letters(ctx, f)
	if err != nil {
		return "", err
	}
	gone, err := rows.Discard(ctx, ids...)
	if err != nil {
		return "", err
	}
	text := "Discarded " + one(int64(len(gone)), "event") + "."
	if n := len(ids) - len(gone); n > 0 {
		text += fmt.Sprintf(" %s dead anymore.", wereNot(n))
	}
	return text, nil
}

func wereNot(n int) string {
	if n == 1 {
		return "1 event was not"
	}
	return count(n) + " events were not"
}

func (d *Dashboard) unblock(ctx context.Context, f form) (string, error) {
	rows, err := d.rows(ctx, f.value("destination"))
	if err != nil {
		return "", err
	}
	ids, err := f.ids()
	if err != nil {
		return "", err
	}
	if len(ids) != 1 {
		return "", refuse(http.StatusBadRequest, "Nothing was changed: no event is selected.")
	}
	done, err := rows.Unblock(ctx, ids...)
	if err != nil {
		return "", err
	}
	if len(done) == 0 {
		return "The event does not block its aggregate anymore.", nil
	}
	return "The aggregate continues. The event stays where it is.", nil
}

func (d *Dashboard) pause(ctx context.Context, f form) (string, error) {
	name := f.value("name")
	done, err := d.cfg.Destinations.Pause(ctx, name, f.value("reason"))
	if err != nil {
		return "", err
	}
	if !done {
		return "Destination " + name + " was paused already; its earlier reason stays.", nil
	}
	return "Destination " + name + " is paused. Running relays follow within a heartbeat.", nil
}

func (d *Dashboard) resume(ctx context.Context, f form) (string, error) {
	name := f.value("name")
	done, err := d.cfg.Destinations.Resume(ctx, name)
	if err != nil {
		return "", err
	}
	if !done {
		return "Destination " + name + " was not paused.", nil
	}
	return "Destination " + name + " is resumed. Running relays follow within a heartbeat.", nil
}

func (d *Dashboard) probe(ctx context.Context, f form) (string, error) {
	name := f.value("name")
	if err := d.cfg.Destinations.Probe(ctx, name); err != nil {
		return "", err
	}
	return "Running relays try destination " + name + " now, if it is unavailable.", nil
}

func (d *Dashboard) redrive(ctx context.Context, f form) (string, error) {
	group := f.value("group")
	if f.value("all") == "1" {
		n, err := d.deadRecords(ctx, group)
		if err != nil {
			return "", err
		}
		if err := f.number(n); err != nil {
			return "", err
		}
		done, err := d.cfg.Inbox.RedriveAll(ctx, group, nil)
		return redriven(done), err
	}
	keys, err := f.ids()
	if err != nil {
		return "", err
	}
	if len(keys) != 1 {
		return "", refuse(http.StatusBadRequest, "Nothing was changed: no record is selected.")
	}
	done, err := d.cfg.Inbox.Redrive(ctx, group, keys...)
	return redriven(done), err
}

func redriven(n int) string {
	return one(int64(n), "record") + " of the group will be retried, with all attempts."
}

// deadRecords returns the number of dead records of a group.
func (d *Dashboard) deadRecords(ctx context.Context, group string) (int, error) {
	all, err := d.cfg.Inbox.Stats(ctx, false)
	if err != nil {
		return 0, err
	}
	for _, g := range all {
		if g.Group == group {
			return int(g.Dead), nil
		}
	}
	return 0, nil
}
