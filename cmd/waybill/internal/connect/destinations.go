package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/relay"
)

// CheckSinks is [CheckSink] for a relay's sink, or for the sinks of all of its
// destinations. Two destinations with one sink must not receive one event: its
// consumers would get the event twice, or JetStream, which deduplicates within
// a stream, would drop the second message.
func CheckSinks(s *settings.Settings) error {
	if len(s.Destinations) == 0 {
		return CheckSink(s.Sink)
	}
	var errs []error
	names := make([]string, len(s.Destinations))
	for i, d := range s.Destinations {
		name, err := SinkName(d.Sink)
		if err != nil {
			errs = append(errs, ofDestination(d.Name, err))
			continue
		}
		names[i] = name
		for j, other := range s.Destinations[:i] {
			if names[j] == name {
				errs = append(errs, apart(other, d))
			}
		}
	}
	return errors.Join(errs...)
}

// apart returns an error about two destinations whose sinks have one name, if
// they must not have one sink.
func apart(a, b settings.Destination) error {
	scheme, _, _ := strings.Cut(a.Sink.URL.Reveal(), ":")
	stream := scheme == "nats" || scheme == "tls"
	switch {
	case embedded(a.Sink):
		return hint.New("set dir and listen: nats:embedded?dir=FOLDER&listen=127.0.0.1:4223", "%w: destinations %s and %s start a server in the same folder",
			ErrBadSetting, a.Name, b.Name)
	case scheme != "log" && overlap(a, b) && (stream || a.Sink.URL == b.Sink.URL && a.Sink.Topic == b.Sink.Topic):
		return hint.New("give each its own types, aggregate-types or tenants, or its own sink", "%w: destinations %s and %s have one sink, and receive the same events",
			ErrBadSetting, a.Name, b.Name)
	}
	return nil
}

// overlap reports whether an event may belong to both destinations.
func overlap(a, b settings.Destination) bool {
	shared := func(a, b []string) bool {
		return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
	}
	return shared(a.Types, b.Types) && shared(a.AggregateTypes, b.AggregateTypes) && shared(a.Tenants, b.Tenants)
}

// ofDestination adds the name of a destination to an error of its sink.
func ofDestination(name string, err error) error {
	return fmt.Errorf("destination %s: %w", name, err)
}

// SinkNames returns the name under which an outbox records the receivers of its
// events: that of [SinkName] or, for destinations, all names and sinks in the
// order of the names.
func SinkNames(s *settings.Settings) (string, error) {
	if len(s.Destinations) == 0 {
		return SinkName(s.Sink)
	}
	all := slices.SortedFunc(slices.Values(s.Destinations), func(a, b settings.Destination) int { return cmp.Compare(a.Name, b.Name) })
	texts := make([]string, len(all))
	for i, d := range all {
		name, err := SinkName(d.Sink)
		if err != nil {
			return "", ofDestination(d.Name, err)
		}
		texts[i] = d.Name + " " + name
	}
	return "destinations " + strings.Join(texts, ", "), nil
}

// OpenDestinations opens the sinks of destinations concurrently, in their
// order. cfg has what all of them share. A sink that is unreachable does not
// keep the others waiting: it is opened with its first deliveries, which are
// unavailable until then. After any other error, and after one of a server in
// this process, all sinks are closed.
func OpenDestinations(ctx context.Context, all []settings.Destination, cfg SinkConfig) ([]*Sink, error) {
	sinks, errs := make([]*Sink, len(all)), make([]error, len(all))
	var group sync.WaitGroup
	for i, d := range all {
		group.Go(func() {
			one := cfg
			one.Sink = d.Sink
			s, err := OpenSink(ctx, one)
			if errors.Is(err, ErrUnreachable) && !embedded(d.Sink) {
				cfg.Logger.Warn("sink cannot be opened; the events of its destination wait", slog.String(logkey.Component, "sink"),
					slog.String(logkey.Destination, d.Name), slog.String(logkey.Error, err.Error()))
				s, err = openLater(one), nil
			}
			if sinks[i] = s; err != nil {
				errs[i] = ofDestination(d.Name, err)
			}
		})
	}
	group.Wait()
	err := errors.Join(errs...)
	if err == nil {
		return sinks, nil
	}
	for _, s := range sinks {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return nil, err
}

// embedded reports whether the server of a sink is in this process.
func embedded(cfg settings.Sink) bool {
	return strings.HasPrefix(cfg.URL.Reveal(), "nats:") && !strings.HasPrefix(cfg.URL.Reveal(), "nats://")
}

// late is a sink whose server was unreachable. Each call tries to open it,
// until it is open.
type late struct {
	open func(ctx context.Context) (*Sink, error)

	mu   sync.Mutex
	sink *Sink // nil until it is open
}

// Each sink that can be unreachable is an OrderedSink and a DestinationSink.
var (
	_ relay.OrderedSink     = (*late)(nil)
	_ relay.DestinationSink = (*late)(nil)
)

// openLater returns a sink that is opened with its first deliveries.
func openLater(cfg SinkConfig) *Sink {
	l := &late{open: func(ctx context.Context) (*Sink, error) { return OpenSink(ctx, cfg) }}
	return &Sink{Sink: l, Address: cfg.URL, close: l.close}
}

// Deliver implements [waybill.Sink].
func (l *late) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	s, err := l.get(ctx)
	if err != nil {
		return slices.Repeat([]error{waybill.Unavailable(err)}, len(batch))
	}
	return s.Deliver(ctx, batch)
}

func (l *late) get(ctx context.Context) (*Sink, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sink == nil {
		s, err := l.open(ctx)
		if err != nil {
			return nil, err
		}
		l.sink = s
	}
	return l.sink, nil
}

// close closes the sink, if it was opened.
func (l *late) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sink == nil {
		return nil
	}
	return l.sink.Close()
}

// StopsAtFailure implements [relay.OrderedSink].
func (*late) StopsAtFailure() {}

// Destination implements [relay.DestinationSink]. It returns the same name for
// an event before and after the sink is open, so it cannot use the topics of
// the sink.
func (*late) Destination(ev *waybill.Event) string { return cmp.Or(ev.Topic, ev.Type) }
