package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Destinations inspects and changes the destinations of an outbox: what each
// has yet to receive, pause and resume, and replays of delivered events. Its
// methods may be called concurrently, and while relays run.
//
// A running relay takes a change into account at its next heartbeat, after 5 s
// by default, or within a second if a wake-up reaches it.
type Destinations struct {
	outbox *Outbox
	db     driver.Backlogs
	cfg    Config
}

// NewDestinations returns the administrative functions of an outbox's
// destinations. The store must have the roles OutboxAdmin and Backlogs.
func NewDestinations[T any](db driver.Store[T], cfg Config) (*Destinations, error) {
	roles, err := driver.Get(db, "admin", "OutboxAdmin", "Backlogs")
	if err != nil {
		return nil, err
	}
	outbox, err := NewOutbox(roles, cfg)
	if err != nil {
		return nil, err
	}
	return &Destinations{outbox: outbox, db: roles.Backlogs, cfg: outbox.cfg}, nil
}

// ErrNoDestination is wrapped by the errors about a destination that is not
// registered.
var ErrNoDestination = driver.ErrNoDestination

// ErrInvalid is wrapped by the errors about invalid arguments of
// [Destinations].
var ErrInvalid = errors.New("admin: invalid argument")

// UnknownDestinationError is the error of a call with the name of a destination
// that is not registered. It wraps [ErrNoDestination].
type UnknownDestinationError struct {
	Name string
	// Known are the names of the registered destinations.
	Known []string
}

// Error lists the registered destinations.
func (e *UnknownDestinationError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("admin: unknown destination %q: the outbox has no destinations", e.Name)
	}
	return fmt.Sprintf("admin: unknown destination %q: the outbox has %s", e.Name, strings.Join(e.Known, ", "))
}

// Unwrap returns [ErrNoDestination].
func (e *UnknownDestinationError) Unwrap() error { return ErrNoDestination }

// Destination is a destination and the counts of its backlog.
type Destination struct {
	store.Destination
	// Ready, Failed and Scheduled count the events that the destination has yet
	// to receive although they have left the outbox: Failed ones wait for a
	// retry, and Scheduled ones are replayed dead letters.
	Ready, Failed, Scheduled int64
	// Dead counts dead letters, and Holding the events that block their
	// aggregate at this destination.
	Dead, Holding int64
	// Behind is the number of lanes that have events in the backlog: later
	// events of these lanes go there, too.
	Behind int
	// MaxAttempts is the highest number of attempts of an event that is not
	// dead.
	MaxAttempts int
	// Oldest is when the oldest event was written that is neither received nor
	// dead, and Lag its age; both are zero if there is none. A replay of old
	// events raises the lag to their age.
	Oldest time.Time
	Lag    time.Duration
	// PausedFor is how long the destination has been paused; 0 if it is not.
	PausedFor time.Duration
	// Troubles are the reasons why relay nodes hold back events of the
	// destination, the one that has lasted longest first.
	Troubles []Trouble
}

// Waiting is the number of events in the backlog that are not dead.
func (d Destination) Waiting() int64 { return d.Ready + d.Failed + d.Scheduled }

// Rows is the number of rows of the backlog.
func (d Destination) Rows() int64 { return d.Waiting() + d.Dead }

// List returns all registered destinations with their counts, in the order of
// their numbers, and reports the counts to the observer.
func (s *Destinations) List(ctx context.Context) ([]Destination, error) {
	out, err := s.list(ctx, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	if s.cfg.Observe.Destinations != nil {
		s.cfg.Observe.Destinations(infoOf(out))
	}
	return out, nil
}

// ListUpTo is [Destinations.List], except that the dead letters of each may be
// counted only up to most: Dead is then most or more. It reports nothing to the
// observer.
func (s *Destinations) ListUpTo(ctx context.Context, most int64) ([]Destination, error) {
	return s.list(ctx, most)
}

func (s *Destinations) list(ctx context.Context, most int64) ([]Destination, error) {
	all, err := s.registered(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Destination, 0, len(all))
	for _, d := range all {
		counted, err := s.count(ctx, d, most)
		if err != nil {
			return nil, err
		}
		out = append(out, counted)
	}
	return out, s.addTroubles(ctx, out)
}

// infoOf returns counts for the observer.
func infoOf(all []Destination) observe.DestinationsInfo {
	var info observe.DestinationsInfo
	for _, d := range all {
		info.Destinations = append(info.Destinations, observe.Destination{
			Name: d.Name, Paused: d.IsPaused(), PausedFor: d.PausedFor, Behind: d.Behind, Ready: d.Ready, Failed: d.Failed, Scheduled: d.Scheduled,
			Dead: d.Dead, Holding: d.Holding, MaxAttempts: d.MaxAttempts, Oldest: d.Lag,
		})
	}
	return info
}

// Find returns a destination with its counts.
func (s *Destinations) Find(ctx context.Context, name string) (Destination, error) {
	d, err := s.find(ctx, name)
	if err != nil {
		return Destination{}, err
	}
	counted, err := s.count(ctx, d, math.MaxInt64)
	if err != nil {
		return Destination{}, err
	}
	one := []Destination{counted}
	err = s.addTroubles(ctx, one)
	return one[0], err
}

// addTroubles adds what the live nodes report about destinations.
func (s *Destinations) addTroubles(ctx context.Context, all []Destination) error {
	if len(all) == 0 {
		return nil
	}
	m, err := s.outbox.members(ctx)
	if err != nil {
		return fmt.Errorf("admin: reading the reports of relay nodes: %w", err)
	}
	for _, t := range Troubles(m) {
		for i := range all {
			if all[i].Name == t.Destination {
				all[i].Troubles = append(all[i].Troubles, t)
			}
		}
	}
	return nil
}

// count counts the rows of a destination's backlog, and dead letters up to
// most.
func (s *Destinations) count(ctx context.Context, d store.Destination, most int64) (Destination, error) {
	rows := s.db.Backlog(d.Number)
	failed := func(err error) (Destination, error) {
		return Destination{}, fmt.Errorf("admin: counting the backlog of destination %q: %w", d.Name, err)
	}
	stats, err := statsUpTo(ctx, rows, most)
	if err != nil {
		return failed(err)
	}
	lanes, err := rows.Occupied(ctx)
	if err != nil {
		return failed(err)
	}
	out := Destination{
		Destination: d, Ready: stats.Ready, Failed: stats.Failed, Scheduled: stats.Scheduled, Dead: stats.Dead, Holding: stats.Holding,
		Behind: len(lanes), MaxAttempts: stats.MaxAttempts, Oldest: stats.Oldest,
	}
	if out.Failed+out.Scheduled > 0 { // Stats.Oldest is that of ready rows
		first, err := rows.List(ctx, store.Delayed, store.Filter{}, 0, 1)
		if err != nil {
			return failed(err)
		}
		for _, r := range first {
			if out.Oldest.IsZero() || r.CreatedAt.Before(out.Oldest) {
				out.Oldest = r.CreatedAt
			}
		}
	}
	if !out.Oldest.IsZero() {
		out.Lag = max(stats.Now.Sub(out.Oldest), 0)
	}
	if d.IsPaused() {
		out.PausedFor = max(stats.Now.Sub(d.PausedAt), 0)
	}
	return out, nil
}

// registered returns the registered destinations.
func (s *Destinations) registered(ctx context.Context) ([]store.Destination, error) {
	all, err := s.db.AddDestinations(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: listing destinations: %w", err)
	}
	return all, nil
}

// find returns a registered destination, or an [UnknownDestinationError].
func (s *Destinations) find(ctx context.Context, name string) (store.Destination, error) {
	all, err := s.registered(ctx)
	if err != nil {
		return store.Destination{}, err
	}
	if i := slices.IndexFunc(all, func(d store.Destination) bool { return d.Name == name }); i >= 0 {
		return all[i], nil
	}
	return store.Destination{}, unknown(name, all)
}

func unknown(name string, all []store.Destination) error {
	e := &UnknownDestinationError{Name: name}
	for _, d := range all {
		e.Known = append(e.Known, d.Name)
	}
	return e
}

// failed returns the error of a change to a destination.
func (s *Destinations) failed(ctx context.Context, what, name string, err error) error {
	if !errors.Is(err, driver.ErrNoDestination) {
		return fmt.Errorf("admin: %s destination %q: %w", what, name, err)
	}
	all, failed := s.registered(ctx)
	if failed != nil {
		return failed
	}
	return unknown(name, all)
}

// Add registers a destination, and reports false if it was registered before. A
// relay registers its destinations by itself: Add is for a destination that
// receives events of the past before a relay has it; see [Destinations.Replay].
func (s *Destinations) Add(ctx context.Context, name string) (store.Destination, bool, error) {
	if err := checkName(name); err != nil {
		return store.Destination{}, false, err
	}
	known, err := s.registered(ctx)
	if err != nil {
		return store.Destination{}, false, err
	}
	for _, d := range known {
		if d.Name == name {
			return d, false, nil
		}
	}
	all, err := s.db.AddDestinations(audited(ctx, "destination_add", name, ""), name)
	if err != nil {
		return store.Destination{}, false, fmt.Errorf("admin: adding destination %q: %w", name, err)
	}
	s.outbox.wake(1)
	for _, d := range all {
		if d.Name == name {
			return d, true, nil
		}
	}
	return store.Destination{}, false, fmt.Errorf("admin: adding destination %q: the store did not return it", name)
}

// checkName rejects names that cannot be stored, logged and typed.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the name of a destination is empty", ErrInvalid)
	case len(name) > driver.MaxDestinationName:
		return fmt.Errorf("%w: the name of a destination has %d bytes, at most %d", ErrInvalid, len(name), driver.MaxDestinationName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: the name of a destination is not valid UTF-8: %q", ErrInvalid, name)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fmt.Errorf("%w: the name of a destination contains a space or a control character: %q", ErrInvalid, name)
	}
	return nil
}

// maxReason is the maximum length of the reason of a pause, in bytes.
const maxReason = 4000

// Pause pauses a destination: its events wait in its backlog until
// [Destinations.Resume]. Pause reports false if the destination is paused
// already; the earlier reason stays then.
func (s *Destinations) Pause(ctx context.Context, name, reason string) (bool, error) {
	switch {
	case len(reason) > maxReason:
		return false, fmt.Errorf("%w: the reason of a pause has %d bytes, at most %d", ErrInvalid, len(reason), maxReason)
	case !utf8.ValidString(reason) || strings.ContainsRune(reason, 0):
		return false, fmt.Errorf("%w: the reason of a pause is not valid text: %q", ErrInvalid, reason)
	}
	done, err := s.db.PauseDestination(audited(ctx, "pause", name, reason), name, reason)
	if err != nil {
		return false, s.failed(ctx, "pausing", name, err)
	}
	s.outbox.wake(1)
	return done, nil
}

// Resume ends the pause of a destination. It reports false if the destination
// is not paused.
func (s *Destinations) Resume(ctx context.Context, name string) (bool, error) {
	done, err := s.db.ResumeDestination(audited(ctx, "resume", name, ""), name)
	if err != nil {
		return false, s.failed(ctx, "resuming", name, err)
	}
	s.outbox.wake(1)
	return done, nil
}

// Probe asks the relays to try an unavailable destination now, instead of at
// the end of its backoff.
func (s *Destinations) Probe(ctx context.Context, name string) error {
	if err := s.db.ProbeDestination(audited(ctx, "probe", name, ""), name); err != nil {
		return s.failed(ctx, "probing", name, err)
	}
	s.outbox.wake(1)
	return nil
}

// Remove deletes a destination and its backlog, and returns the number of
// deleted rows: events that the destination never receives, and dead letters.
// Stop the relays first: while one is live, Remove returns
// [store.ErrRelayLive].
func (s *Destinations) Remove(ctx context.Context, name string) (int64, error) {
	n, err := s.db.RemoveDestination(audited(ctx, "destination_remove", name, ""), name)
	if err != nil {
		return 0, s.failed(ctx, "removing", name, err)
	}
	s.outbox.wake(1)
	return n, nil
}

// Outbox returns the functions of [Outbox] for the backlog of a destination:
// its counts, lists, dead letters and blocked aggregates. Functions that
// concern the outbox as a whole return [ErrBacklog].
func (s *Destinations) Outbox(ctx context.Context, name string) (*Outbox, error) {
	d, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.outbox.at(d), nil
}
