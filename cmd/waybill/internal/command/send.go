package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
)

func (a *app) send() *cobra.Command {
	var ev waybill.Event
	var payload, delay string
	var headers []string
	cmd := &cobra.Command{
		Use: "send TYPE", Short: "Write an event to the outbox", Args: needs(1, 1, "the event's type"),
		Long: "Write an event to the outbox, in a separate transaction. A relay delivers it like any other.\n\n" +
			"  waybill send OrderPlaced --aggregate-type order --aggregate 17 --payload '{\"total\": 9990}'",
		RunE: func(cmd *cobra.Command, args []string) error {
			ev.Type = args[0]
			if delay != "" {
				d, err := settings.ParseDuration(delay)
				if err != nil || d < 0 {
					return usage("write --delay 10m", "--delay %s is not a duration", delay)
				}
				ev.Delay = d
			}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, "=")
				if !ok {
					return usage("write --header name=value", "header %q has no value", h)
				}
				if ev.Headers == nil {
					ev.Headers = make(map[string]string)
				}
				ev.Headers[name] = value
			}
			var err error
			if ev.Payload, err = a.payload(payload); err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.write(ctx, d, ev) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&ev.AggregateType, "aggregate-type", "", "Type of the event's aggregate")
	flags.StringVar(&ev.AggregateID, "aggregate", "", "Id of the event's aggregate; events of one aggregate are delivered in order")
	flags.StringVar(&ev.TenantID, "tenant", "", "Tenant of the event")
	flags.StringVar(&ev.Topic, "topic", "", "Topic of the event; empty: the event's type")
	flags.StringVar(&ev.RoutingKey, "routing-key", "", "Routing key of the event")
	flags.StringVar(&ev.DedupKey, "dedup-key", "", "Dedup key of the event; a pending event with the same key absorbs the new one")
	flags.StringVar(&ev.CorrelationID, "correlation", "", "Correlation id of the event")
	flags.StringVar(&ev.ContentType, "content-type", waybill.JSON, "Content type of the payload")
	flags.IntVar(&ev.Priority, "priority", 0, "Priority of the event, 0 to 32767; higher priorities are delivered first")
	flags.StringVar(&payload, "payload", "null", "Payload of the event; @FILE: content of a file, -: standard input")
	flags.StringVar(&delay, "delay", "", "Minimum delay before the delivery, such as 10m")
	flags.StringArrayVar(&headers, "header", nil, "Header of the event as name=value; repeatable")
	return cmd
}

// payload returns the payload for the value of the flag.
func (a *app) payload(flag string) ([]byte, error) {
	var in io.Reader
	switch {
	case flag == "-":
		in = a.In
	case strings.HasPrefix(flag, "@"):
		f, err := os.Open(flag[1:])
		if err != nil {
			return nil, usage("--payload @FILE reads a file", "%v", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	default:
		return []byte(flag), nil
	}
	data, err := io.ReadAll(io.LimitReader(in, waybill.MaxPayload+1)) // one more byte, so that validation rejects the event
	if err != nil {
		return nil, fmt.Errorf("reading the payload: %w", err)
	}
	return data, nil
}

func (a *app) write(ctx context.Context, d *session, ev waybill.Event) error {
	ev.ID = waybill.NewID()
	if err := eventfill.Defaults(ev).Validate(); err != nil {
		return usage("see waybill send --help", "%s", strings.TrimPrefix(err.Error(), "waybill: "))
	}
	receipts, err := d.store.Send(ctx, ev)
	var uncertain *outbox.UncertainError
	if errors.As(err, &uncertain) {
		return hint.New("check with waybill show "+ev.ID.String()+" before sending the event again", "the outcome of the commit is unknown: %w", d.store.Clean(err))
	}
	if err != nil {
		return d.store.Clean(err)
	}
	r := receipts[0]
	if a.json {
		return a.printJSON(map[string]any{"id": r.ID, "outcome": outcomeName(r.Outcome)})
	}
	fmt.Fprintf(a.Out, "%s: %s\n", outcomeName(r.Outcome), r.ID)
	return nil
}

// outcomeName returns the outcome of a receipt as a word.
func outcomeName(o outbox.Outcome) string { return strings.ToLower(o.String()) }
