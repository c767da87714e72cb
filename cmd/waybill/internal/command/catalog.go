package command

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/catalog"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// eventTypeView is an event type in the output of waybill events list.
type eventTypeView struct {
	Type          string `json:"type"`
	AggregateType string `json:"aggregate_type"`
	Topic         string `json:"topic"`
	ContentType   string `json:"content_type"`
	SchemaID      string `json:"schema_id,omitempty"`
	SchemaVersion int    `json:"schema_version"`
}

// changeView is a change in the output of waybill events check.
type changeView struct {
	Type           string `json:"type"`
	Path           string `json:"path,omitempty"`
	Text           string `json:"text"`
	BreaksForward  bool   `json:"breaks_forward"`
	BreaksBackward bool   `json:"breaks_backward"`
	Allowed        bool   `json:"allowed,omitempty"`
	Fails          bool   `json:"fails"`
}

var promises = []string{string(catalog.Full), string(catalog.Forward), string(catalog.Backward)}

func (a *app) events() *cobra.Command {
	return parent("events", "Read the catalog of event types that a service wrote", a.eventsList(), a.eventsShow(), a.eventsCheck())
}

func (a *app) eventsList() *cobra.Command {
	return &cobra.Command{
		Use: "list FILE", Short: "List the event types of a catalog", Args: needs(1, 1, "the file of a catalog, or - for standard input"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.readCatalog(args[0])
			if err != nil {
				return err
			}
			views := []eventTypeView{}
			for _, t := range c.Types() {
				views = append(views, eventTypeView{t.Name, t.AggregateType, t.Topic, t.ContentType, t.SchemaID, t.SchemaVersion})
			}
			if a.json {
				return a.printJSON(map[string]any{"types": views})
			}
			t := newTable("TYPE", "AGGREGATE", "TOPIC", "VERSION", "SCHEMA", "CONTENT")
			for _, v := range views {
				t.row(v.Type, v.AggregateType, v.Topic, v.SchemaVersion, or(v.SchemaID), v.ContentType)
			}
			return t.writeTo(a.Out)
		},
	}
}

func (a *app) eventsShow() *cobra.Command {
	var aggregate string
	cmd := &cobra.Command{
		Use: "show FILE TYPE", Short: "Print the JSON Schema of an event type's payload",
		Args: needs(2, 2, "the file of a catalog and an event type"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.readCatalog(args[0])
			if err != nil {
				return err
			}
			var found []catalog.EventType
			var names []string
			for _, t := range c.Types() {
				names = append(names, t.Name)
				if t.Name == args[1] && (aggregate == "" || t.AggregateType == aggregate) {
					found = append(found, t)
				}
			}
			switch {
			case len(found) == 0:
				advice := "waybill events list lists the event types"
				if near := hint.Nearest(args[1], names); near != "" && near != args[1] {
					advice = "did you mean " + near + "?"
				}
				return &coded{hint.New(advice, "the catalog has no event type %s", args[1]), NotFound}
			case len(found) > 1:
				return usage("add --aggregate-type", "%s is an event type of %d aggregate types", args[1], len(found))
			}
			schema := c.Schema(found[0])
			if schema == nil {
				return fmt.Errorf("the catalog has no schema of %s: its payload is %s", found[0].Name, found[0].ContentType)
			}
			_, err = a.Out.Write(schema)
			return err
		},
	}
	cmd.Flags().StringVar(&aggregate, "aggregate-type", "", "Aggregate type, for an event type that several aggregate types have")
	return cmd
}

func (a *app) eventsCheck() *cobra.Command {
	var against, compatibility string
	var allowed []string
	cmd := &cobra.Command{
		Use: "check --against OLD NEW", Short: "Report changes between two catalogs, and fail if one breaks consumers",
		Args: needs(1, 1, "the file of the new catalog"),
		Long: "Report changes between two catalogs of a service. The exit code is 1 if a change breaks the promise to consumers:\n\n" +
			"  forward   consumers of the old catalog can read new events\n" +
			"  backward  consumers of the new catalog can read old events: those in the outbox, its history and the broker's topics\n" +
			"  full      both",
		RunE: func(_ *cobra.Command, args []string) error {
			promise := catalog.Compatibility(compatibility)
			if !slices.Contains(promises, compatibility) {
				return usage("use full, forward or backward", "unknown compatibility %q", compatibility)
			}
			if against == "" {
				return usage("write --against and the file of the catalog before the change", "--against is missing")
			}
			before, err := a.readCatalog(against)
			if err != nil {
				return err
			}
			after, err := a.readCatalog(args[0])
			if err != nil {
				return err
			}
			return a.printChanges(catalog.Compare(before, after), promise, allowed)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&against, "against", "", "File of the catalog before the change, such as the one of the released version")
	flags.StringVar(&compatibility, "compatibility", string(catalog.Full), "Promise to consumers: full, forward or backward")
	flags.StringSliceVar(&allowed, "allow", nil, "Event types whose breaking changes are intended; they are reported without failing")
	complete(cmd, "compatibility", promises...)
	return cmd
}

// printChanges prints the breaking changes first. Its error is that of the
// check.
func (a *app) printChanges(changes []catalog.Change, promise catalog.Compatibility, allowed []string) error {
	breaking, views := int64(0), []changeView{}
	for _, fails := range []bool{true, false} {
		for _, c := range changes {
			breaks, intended := c.Breaks(promise), slices.Contains(allowed, c.Type)
			if fails != (breaks && !intended) {
				continue
			}
			if fails {
				breaking++
			}
			views = append(views, changeView{c.Type, c.Path, c.Text, c.BreaksForward, c.BreaksBackward, breaks && intended, fails})
		}
	}
	if a.json {
		if err := a.printJSON(map[string]any{"changes": views}); err != nil {
			return err
		}
	} else if err := a.printChangeLines(views); err != nil {
		return err
	}
	if breaking > 0 {
		return hint.New("give the new form an event type of its own, or pass --allow TYPE for an intended change", "%s", count(breaking, "breaking change", "breaking changes"))
	}
	return nil
}

func (a *app) printChangeLines(views []changeView) error {
	if len(views) == 0 {
		_, err := fmt.Fprintln(a.Out, "no changes")
		return err
	}
	for _, v := range views {
		kind := "compatible"
		switch {
		case v.Fails:
			kind = "breaking"
		case v.Allowed:
			kind = "allowed"
		}
		line := catalog.Change{Type: v.Type, Path: v.Path, Text: v.Text}.String()
		if _, err := fmt.Fprintf(a.Out, "%-10s  %s\n", kind, plain(line)); err != nil {
			return err
		}
	}
	return nil
}

// readCatalog reads a file, or standard input.
func (a *app) readCatalog(name string) (*catalog.Catalog, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &coded{err, Usage}
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	c, err := catalog.Read(in)
	if err != nil {
		advice := "the service writes the file with catalog.Write"
		return nil, &coded{hint.New(advice, "%s: %s", name, strings.TrimPrefix(err.Error(), "catalog: read: ")), Usage}
	}
	return c, nil
}
