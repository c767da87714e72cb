package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/importing"
)

// importFlags are the flags of every waybill import.
type importFlags struct {
	importing.Options
	mark, remove bool
}

// importLong is part of the help of every import.
const importLong = "The table must be in the database of the store. A batch of events, the record of their rows, and the change of the rows are one\n" +
	"transaction: each row is imported once, also if the command is killed and run again. The rows stay as they are unless --mark or\n" +
	"--delete is given."

func (a *app) imports() *cobra.Command {
	return parent("import", "Copy the undelivered rows of another system's outbox table into the outbox", a.importTable(), a.importWatermill(), a.importRiver(), a.importDebezium())
}

// importCommand returns a command that imports a table. what describes its
// arguments. marks describes what --mark does; it is empty for a command
// without that flag, or with one of its own.
func (a *app) importCommand(use, short, long, what, marks string, layout func(args []string, f *importFlags) (importing.Layout, error)) (*cobra.Command, *importFlags) {
	f := &importFlags{}
	maximum := 1
	if strings.HasSuffix(use, "…") {
		maximum = -1
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Args: needs(1, maximum, what), Long: long + "\n\n" + importLong,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			l, err := layout(args, f)
			if err != nil {
				return err
			}
			if err := f.finish(); err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.importRows(ctx, d.store, l, f) })
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.Batch, "batch", importing.DefaultBatch, "Number of rows in one transaction")
	flags.IntVar(&f.Limit, "limit", 0, "Maximum number of rows to import; 0: no limit")
	flags.BoolVar(&f.DryRun, "dry-run", false, "Report of the rows, without a change")
	flags.BoolVar(&f.SkipInvalid, "skip-invalid", false, "Import of the other rows if a row cannot be an event")
	flags.BoolVar(&f.remove, "delete", false, "Deletion of the imported rows, in the transaction that imports them")
	if marks != "" {
		flags.BoolVar(&f.mark, "mark", false, marks)
	}
	return cmd, f
}

// check checks the flags that all imports have.
func (f *importFlags) check(cmd *cobra.Command) error {
	switch {
	case f.Batch < 1 || f.Batch > importing.MaxBatch:
		return usage(fmt.Sprintf("use 1 to %d", importing.MaxBatch), "--batch %d is out of range", f.Batch)
	case f.Limit < 0 || f.Limit == 0 && cmd.Flags().Changed("limit"):
		return usage("", "--limit %d is not positive", f.Limit)
	}
	return nil
}

// finish sets what happens to the rows.
func (f *importFlags) finish() error {
	switch {
	case f.mark && f.remove:
		return usage("use one of them", "--mark and --delete exclude each other")
	case f.mark:
		f.Done = importing.Mark
	case f.remove:
		f.Done = importing.Delete
	}
	return nil
}

func (a *app) importTable() *cobra.Command {
	var own importing.OwnTable
	var columns []string
	cmd, _ := a.importCommand("table TABLE", "Copy the undelivered rows of a service's own outbox table",
		"Copy the undelivered rows of a service's own outbox table. --column says where the fields of an event come from; a value is the\n"+
			"name of a column or an SQL expression. The fields:\n\n  "+fieldLines()+"\n\n"+
			"  waybill import table outbox --where 'sent_at IS NULL' --column type=event_type --column payload=body \\\n"+
			"    --column aggregate_type=\"'order'\" --column aggregate_id=order_id --mark 'sent_at = CURRENT_TIMESTAMP'",
		"the name of a table", "", func(args []string, f *importFlags) (importing.Layout, error) {
			own.Table = args[0]
			f.mark = own.Set != ""
			var err error
			if own.Columns, err = pairs("column", "an event", columns, importing.Fields()); err != nil {
				return nil, err
			}
			for _, field := range []string{"payload", "type"} {
				if own.Columns[field] == "" {
					return nil, usage("write --column "+field+"=COLUMN", "the column of the event's %s is missing", field)
				}
			}
			return own, nil
		})
	flags := cmd.Flags()
	flags.StringVar(&own.ID, "id", "id", "Column that identifies a row")
	flags.StringVar(&own.Order, "order", "", "Columns by which the rows are ordered; empty: the id")
	flags.StringVar(&own.Where, "where", "", "Condition of rows that are not delivered; empty: all rows")
	flags.StringVar(&own.Set, "mark", "", "Assignments that mark the imported rows as delivered, such as: sent_at = CURRENT_TIMESTAMP")
	flags.StringArrayVar(&columns, "column", nil, "Field of the event and its column or expression, as field=column; repeatable")
	return cmd
}

func (a *app) importWatermill() *cobra.Command {
	var w importing.Watermill
	cmd, _ := a.importCommand("watermill TOPIC", "Copy the undelivered messages of a topic of watermill-sql",
		"Copy the undelivered messages of a topic of watermill-sql, in PostgreSQL or MySQL: those behind the offset of a consumer group or,\n"+
			"in a queue, those that are not acknowledged. With --forwarder the messages are envelopes of Watermill's forwarder, and each event\n"+
			"has the destination topic, the UUID and the metadata of the message inside.\n\n"+
			"  waybill import watermill forwarder_topic --forwarder --consumer-group forwarder --mark",
		"a topic", "Offset of the consumer group behind the imported messages, or their acknowledgment in a queue",
		func(args []string, _ *importFlags) (importing.Layout, error) {
			w.Topic = args[0]
			return w, nil
		})
	flags := cmd.Flags()
	flags.BoolVar(&w.Forwarder, "forwarder", false, "Messages that are envelopes of Watermill's forwarder")
	flags.StringVar(&w.Group, "consumer-group", "", "Consumer group of the subscriber or forwarder; empty: Watermill's default")
	flags.StringVar(&w.Aggregate, "aggregate-metadata", "", "Metadata entry that has the id of the aggregate, besides aggregateid")
	flags.StringVar(&w.Table, "table", "", "Table of the messages; empty: watermill_TOPIC")
	flags.StringVar(&w.Offsets, "offsets-table", "", "Table of the offsets; empty: watermill_offsets_TOPIC")
	return cmd
}

func (a *app) importRiver() *cobra.Command {
	var v importing.River
	cmd, _ := a.importCommand("river KIND…", "Copy the waiting jobs of River",
		"Copy the waiting jobs of River, in PostgreSQL: those of the kinds that are available, scheduled, pending or waiting for a retry. The\n"+
			"kind of a job is the event's type, its arguments are the payload; a scheduled job is delivered at its time. Stop the clients of\n"+
			"River before.\n\n"+
			"  waybill import river order_placed order_paid --aggregate-type order --aggregate-arg order_id --mark",
		"kinds of jobs", "Cancellation of the imported jobs",
		func(args []string, _ *importFlags) (importing.Layout, error) {
			v.Kinds = args
			return v, nil
		})
	flags := cmd.Flags()
	flags.StringVar(&v.AggregateType, "aggregate-type", "", "Aggregate type of the events")
	flags.StringVar(&v.AggregateArg, "aggregate-arg", "", "Argument of the jobs that has the id of the aggregate; empty: the events have no order")
	flags.BoolVar(&v.Running, "running", false, "Running jobs, too: those of workers that crashed")
	flags.StringVar(&v.Table, "table", "river_job", "Table of the jobs")
	return cmd
}

func (a *app) importDebezium() *cobra.Command {
	var z importing.Debezium
	var columns, headers []string
	cmd, _ := a.importCommand("debezium TABLE", "Copy the rows of an outbox table that Debezium has not published",
		"Copy the rows of a table of Debezium's outbox event router that the connector has not published. The table does not record which\n"+
			"ones these are: --after is the id of the last row that was published. The columns are those of the router's defaults; --column\n"+
			"names others, as the router's table.field.event settings do.\n\n"+
			"  waybill import debezium outbox --order created_at --after 0b7c7bd4-2c1c-4f0e-8f0e-8f4f0a4a3c11 --column timestamp=created_at",
		"a table", "",
		func(args []string, _ *importFlags) (layout importing.Layout, err error) {
			z.Table = args[0]
			if z.Columns, err = pairs("column", "the router", columns, importing.DebeziumColumns()); err != nil {
				return nil, err
			}
			z.Headers, err = pairs("header", "", headers, nil)
			return z, err
		})
	flags := cmd.Flags()
	flags.StringVar(&z.After, "after", "", "Id of the last row that the connector has published; empty: it has published none")
	flags.StringVar(&z.Order, "order", "", "Column by which the rows are ordered, before the id; empty: the id")
	flags.StringVar(&z.Where, "where", "", "Another condition of rows that are not published")
	flags.StringVar(&z.Topic, "topic", importing.DebeziumTopic, "Topic of the events, as route.topic.replacement; empty: the type")
	flags.StringArrayVar(&columns, "column", nil, "Column of a field of the router, as field=column; repeatable")
	flags.StringArrayVar(&headers, "header", nil, "Column that becomes a header, as header=column; repeatable")
	return cmd
}

// pairs parses the values name=value of a flag. The names must be known, unless
// there is no list of them; of describes what has the names.
func pairs(flag, of string, values, known []string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range values {
		name, value, ok := strings.Cut(pair, "=")
		value = strings.TrimSpace(value)
		switch {
		case !ok || value == "" || name == "":
			return nil, usage("write --"+flag+" name=column", "--%s %q names no column", flag, pair)
		case known != nil && !slices.Contains(known, name):
			advice := "fields: " + strings.Join(known, ", ")
			if near := hint.Nearest(name, known); near != "" {
				advice = "did you mean " + near + "?"
			}
			return nil, usage(advice, "%s has no field %s", of, name)
		}
		out[name] = value
	}
	return out, nil
}

// fieldLines lists the fields of an event on two lines.
func fieldLines() string {
	all := importing.Fields()
	half := len(all) / 2
	return strings.Join(all[:half], ", ") + ",\n  " + strings.Join(all[half:], ", ")
}

// importRows runs an import and prints its report.
func (a *app) importRows(ctx context.Context, st *connect.Store, layout importing.Layout, f *importFlags) error {
	b := a.bar("importing")
	f.Progress = b.show
	f.Waiting = func(until time.Time) {
		fmt.Fprintf(a.Err, "another import of this table is running or was killed; waiting for its lease, until %s at most\n", at(until))
	}
	rep, err := importing.Run(ctx, st, layout, f.Options)
	b.end()
	if errors.Is(err, importing.ErrBusy) {
		err = hint.New("wait for it; waybill reconcile list shows when it started", "%w", err)
	}
	if err != nil && rep.Waiting == 0 {
		return st.Clean(err) // nothing was read
	}
	err = errors.Join(st.Clean(err), a.printImport(rep))
	if err == nil && rep.Invalid > 0 {
		err = hint.New("correct the rows and run the command again", "%s", count(int64(rep.Invalid), "row cannot be an event", "rows cannot be events"))
		if rep.Imported+rep.Before > 0 && !rep.DryRun {
			err = &coded{err, Partly}
		}
	}
	return err
}

// printImport prints the report of an import.
func (a *app) printImport(r importing.Report) error {
	if a.json {
		return a.printJSON(r)
	}
	what := "imported"
	if r.DryRun {
		what = "would import"
	}
	fmt.Fprintf(a.Out, "%s: %d\n", what, r.Imported)
	counts := map[string]int{"imported before": r.Before, "delivered or deleted by others": r.Gone, "marked": r.Marked, "deleted": r.Deleted, "invalid": r.Invalid}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n > 0 {
			fmt.Fprintf(a.Out, "%s: %d\n", name, n)
		}
	}
	for _, row := range r.InvalidRows {
		fmt.Fprintf(a.Out, "row %s: %s\n", plain(row.ID), plain(row.Problem))
	}
	if n := r.Invalid - len(r.InvalidRows); n > 0 {
		fmt.Fprintf(a.Out, "and %d more\n", n)
	}
	if r.More {
		fmt.Fprintln(a.Err, "the limit was reached; more rows wait")
	}
	return nil
}
