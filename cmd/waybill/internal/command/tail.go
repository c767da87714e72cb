package command

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

func (a *app) tail() *cobra.Command {
	var filter store.Filter
	var every, until string
	var lines, back int
	cmd := &cobra.Command{
		Use: "tail", Short: "Watch events as their state changes", Args: needs(0, 0, ""),
		Long: "Watch events: one line for each change of state. The command polls the tables: an event that is delivered between two polls appears\n" +
			"once, as delivered, and not at all if relay.history-retention is off. Ctrl-C ends the command.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			pause, err := settings.ParseDuration(every)
			if err != nil || pause <= 0 {
				return usage("write --every 500ms", "--every %s is not a duration", every)
			}
			ctx := cmd.Context()
			if until != "" {
				limit, err := settings.ParseDuration(until)
				if err != nil || limit <= 0 {
					return usage("write --for 10s", "--for %s is not a duration", until)
				}
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			return a.withStore(cmd, func(_ context.Context, d *session) error {
				w := &watch{app: a, ops: d, filter: filter, seen: make(map[waybill.ID]seenEvent), left: lines, back: int64(back)}
				return w.run(ctx, pause)
			})
		},
	}
	filterFlags(cmd, &filter)
	flags := cmd.Flags()
	flags.StringVar(&every, "every", "500ms", "Interval between polls of the tables")
	flags.StringVar(&until, "for", "", "Duration of the watch; empty: until Ctrl-C")
	flags.IntVar(&lines, "lines", 0, "Maximum number of lines; 0: no limit")
	flags.IntVar(&back, "back", 0, "Number of positions before the newest event to start at")
	return cmd
}

// reorder is the number of positions behind the newest event that are polled:
// long transactions commit late, with low sequence numbers.
const reorder = 1000

type seenEvent struct {
	state store.State
	tries int
	seq   int64
}

// watch prints events whose state has changed.
type watch struct {
	*app
	ops    *session
	filter store.Filter
	seen   map[waybill.ID]seenEvent
	from   int64 // older events are not read
	newest int64
	left   int // lines; 0: no limit
	back   int64
}

func (w *watch) run(ctx context.Context, pause time.Duration) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	newest, err := w.end(ctx)
	if err == nil {
		w.newest = newest
		w.from = max(newest-w.back, 0)
	}
	for err == nil {
		var done bool
		if done, err = w.poll(ctx); done || err != nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	if ctx.Err() != nil {
		return nil // ended by Ctrl-C or --for
	}
	return w.ops.store.Clean(err)
}

// end returns the position of the newest event by bisection: the largest
// position with an event.
func (w *watch) end(ctx context.Context) (int64, error) {
	var newest int64
	for _, state := range states {
		lo, hi := newest, int64(math.MaxInt64) // something may be after lo, nothing is after hi
		for lo < hi {
			mid := lo + (hi-lo)/2
			page, err := w.ops.List(ctx, state, store.Filter{}, mid, 1)
			if err != nil {
				return 0, err
			}
			if len(page.Records) == 0 {
				hi = mid
			} else {
				lo = page.Records[0].Seq
			}
		}
		newest = max(newest, lo)
	}
	return newest, nil
}

// poll prints the changes since the last poll, and reports whether the maximum
// number of lines was reached.
func (w *watch) poll(ctx context.Context) (bool, error) {
	for _, state := range states {
		for after := w.from; ; {
			page, err := w.ops.List(ctx, state, w.filter, after, 500)
			if err != nil {
				return false, err
			}
			for _, r := range page.Records {
				if done, err := w.meet(r); done || err != nil {
					return done, err
				}
			}
			if page.Next == 0 {
				break
			}
			after = page.Next
		}
	}
	w.forget()
	return false, nil
}

func (w *watch) meet(r store.Record) (bool, error) {
	now := seenEvent{state: r.State, tries: r.Attempts, seq: r.Seq}
	if w.seen[r.ID] == now && r.Seq != 0 {
		return false, nil
	}
	w.seen[r.ID] = now
	w.newest = max(w.newest, r.Seq)
	if err := w.line(view.EventOf(r)); err != nil {
		return false, err
	}
	if w.left > 0 {
		w.left--
		return w.left == 0, nil
	}
	return false, nil
}

func (w *watch) line(ev view.Event) error {
	if w.json {
		return json.NewEncoder(w.Out).Encode(ev)
	}
	when := ev.EndedAt
	if when.IsZero() {
		when = ev.CreatedAt
	}
	text := fmt.Sprintf("%s  %-9s  %s  %s  %s", at(when), ev.State, ev.ID, plain(ev.Type), plain(aggregate(ev.AggregateType, ev.AggregateID)))
	if ev.LastError != "" {
		text += fmt.Sprintf("  tried %d: %s", ev.Attempts, plain(cut(ev.LastError, errorWidth)))
	}
	_, err := fmt.Fprintln(w.Out, text)
	return err
}

// forget moves the window: events far behind the newest one are not read any
// more.
func (w *watch) forget() {
	w.from = max(w.from, w.newest-reorder)
	for id, s := range w.seen {
		if s.seq <= w.from {
			delete(w.seen, id)
		}
	}
}
