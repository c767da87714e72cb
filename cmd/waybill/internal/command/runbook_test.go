//go:build linux || darwin

package command_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// broken is an outbox on PostgreSQL in which something is wrong, and the row of
// the runbook about it.
type broken struct {
	*script
	st  *connect.Store
	row string
	ran []string
	// pages are the pages of the dashboard that showed the cause.
	pages []string
	// root is the folder of the repository.
	root string
}

// server starts a server that the test may kill.
func (b *broken) server(name string) manage.Server {
	b.t.Helper()
	b.t.Chdir(b.root)
	defer b.t.Chdir(b.dir)
	return private.Start(b.t, name)
}

var (
	quotedCommand = regexp.MustCompile("`waybill ([^`]+)`")
	placeholder   = regexp.MustCompile(`^([A-Z]+)=(.*)$`)
)

// runbookRows returns the rows of the tables of docs/operating.md about
// symptoms and alerts, by their first cell.
func runbookRows(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docblock.Root(t), "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, inside := map[string]string{}, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case first == "symptom" || first == "alert":
			inside = true
		case inside && !strings.HasPrefix(line, "|---"):
			rows[first] = line
		}
	}
	return rows
}

// finds runs a command that the row names and expects the cause in its output.
// The options are values of placeholders, as in NAME=partner, and further
// arguments.
func (b *broken) finds(command string, options []string, causes ...string) {
	b.t.Helper()
	if !strings.Contains(b.row, "`waybill "+command+"`") {
		b.t.Fatalf("the row does not name `waybill %s`: %s", command, b.row)
	}
	b.ran = append(b.ran, command)
	args, values := strings.Fields(command), map[string]string{}
	for _, o := range options {
		if m := placeholder.FindStringSubmatch(o); m != nil {
			values[m[1]] = m[2]
		} else {
			args = append(args, o)
		}
	}
	for i, word := range args {
		if value, ok := values[word]; ok {
			args[i] = value
		}
	}
	out, errs, _ := b.run(b.t.Context(), args, "")
	all := strings.Join(strings.Fields(out+" "+errs), " ")
	for _, cause := range causes {
		if !strings.Contains(all, cause) {
			b.t.Errorf("waybill %s does not say %q:\n%s%s", strings.Join(args, " "), cause, out, errs)
		}
	}
}

// ages makes the rows of the outbox as old as if the relays had not delivered
// them for six minutes.
func (b *broken) ages() {
	b.t.Helper()
	_, err := b.st.SQL.ExecContext(b.t.Context(), "UPDATE "+b.database+".waybill_outbox SET created_at = created_at - interval '6 minutes'")
	b.must(err)
}

// stuck writes an event that a live relay cannot deliver, and waits until it
// has tried.
func (b *broken) stuck() {
	b.t.Helper()
	tried := make(chan bool, 100)
	b.deliver(b.st, relay.Destination{Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		select {
		case tried <- true:
		default:
		}
		return waybill.Unavailable(errors.New("connection refused"))
	})})
	id := b.send(b.st, "", 1)[0]
	<-tried
	b.at(id, "down") // a heartbeat has reported it
	b.ages()
}

// rejects writes events of one aggregate, of which the first fails.
func (b *broken) rejects(err error, kinds string) []waybill.ID {
	b.t.Helper()
	b.deliver(b.st, relay.Destination{Sink: fails(err)})
	ids := b.send(b.st, "17", 2)
	b.at(ids[0], kinds)
	return ids
}

// gone makes a node disappear that owns the only lane.
func (b *broken) gone() waybill.ID {
	b.t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "waybill"}
	_, err := b.st.Relay.Heartbeat(b.t.Context(), node, time.Minute)
	b.must(err)
	_, err = b.st.Relay.Acquire(b.t.Context(), node, []int{0}, 1)
	b.must(err)
	_, err = b.st.Relay.Heartbeat(b.t.Context(), node, time.Millisecond)
	b.must(err)
	return node.ID
}

// without takes a right from the account of the store.
func (b *broken) without(right, on string) {
	b.t.Helper()
	role := strings.ToLower("runbook_" + waybill.NewID().String())
	do := func(statement string) {
		b.t.Helper()
		if _, err := b.st.SQL.ExecContext(context.WithoutCancel(b.t.Context()), statement); err != nil {
			b.t.Fatalf("%s: %v", statement, err)
		}
	}
	do("CREATE ROLE " + role + " LOGIN PASSWORD 'a-Password'")
	b.t.Cleanup(func() { do("DROP OWNED BY " + role); do("DROP ROLE " + role) })
	do("GRANT USAGE ON SCHEMA " + b.database + " TO " + role)
	do("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + b.database + " TO " + role)
	do("GRANT USAGE ON ALL SEQUENCES IN SCHEMA " + b.database + " TO " + role)
	do("REVOKE " + right + " ON " + b.database + "." + on + " FROM " + role)
	b.account(func(u *url.URL) { u.User = url.UserPassword(role, "a-Password") })
}

// account changes the address of the store, for the commands that follow.
func (b *broken) account(change func(u *url.URL)) {
	b.t.Helper()
	u, err := url.Parse(strings.TrimPrefix(b.environ[0], "WAYBILL_STORE="))
	b.must(err)
	change(u)
	b.environ[0] = "WAYBILL_STORE=" + u.String()
}

var (
	errCarrier  = waybill.RetryAfter(time.Hour, errors.New("the carrier does not answer"))
	errCustomer = waybill.Permanent(errors.New("no such customer"))
)

// symptoms has a test for every row: it breaks something, and runs the commands
// that the row names.
var symptoms = map[string]func(b *broken){
	"ready grows, relays are live": func(b *broken) {
		b.stuck()
		b.finds("doctor", nil, "1 event is ready, and no event is delivered: the oldest has waited for 6m")
		b.shows("/", "has been down for", "connection refused", "The oldest ready event has been waiting for 6 min")
		b.shows("/doctor", "the oldest has waited for 6m")
	},
	"ready grows, no relay is live": func(b *broken) {
		stop := b.deliver(b.st, accepts(""))
		b.at(b.send(b.st, "", 1)[0], "delivered")
		stop()
		b.send(b.st, "", 1)
		b.finds("doctor", nil, "no relay is alive, and 1 events are ready", "start the service, or the waybill serve, that delivers to in-process (relay relay)")
		b.shows("/", "No relay is running: 1 event cannot be delivered")
		b.shows("/relays", "No relay is running")
		b.shows("/doctor", "that delivers to in-process (relay relay)")
	},
	"failed grows": func(b *broken) {
		ids := b.rejects(errCarrier, "retry")
		b.finds("blocked list", nil, "the carrier does not answer", ids[0].String())
		b.shows("/", "1 event failed and will be retried", "the carrier does not answer")
		b.shows("/blocked", "the carrier does not answer", ids[0].String())
		b.shows("/events/"+ids[1].String(), "It waits for the earlier event "+ids[0].String(), "the carrier does not answer")
		b.finds("show ID", []string{"ID=" + ids[0].String()}, "It has failed, once, and is tried again in 59 min", "the carrier does not answer")
		b.finds("show ID", []string{"ID=" + ids[1].String()}, "It waits for the earlier event "+ids[0].String(), "the carrier does not answer")
	},
	"dead > 0": func(b *broken) {
		ids := b.rejects(errCustomer, "dead")
		b.at(ids[1], "dead")
		b.shows("/", "2 dead letters", "no such customer")
		b.shows("/dead", "no such customer", ids[0].String())
		b.finds("dead list", nil, "no such customer", ids[0].String())
		b.finds("dead replay", []string{ids[0].String()}, "replayed: 1")
		b.at(ids[0], "dead")
		b.finds("dead discard", []string{"--all", "--yes"}, "discarded: 2")
	},
	"lag grows, ready is small": func(b *broken) {
		b.deliver(b.st, relay.Destination{Sink: fails(errCarrier)})
		ids := b.send(b.st, "17", 2)
		b.at(ids[0], "retry")
		b.finds("blocked list", nil, ids[0].String(), "the carrier does not answer")
		b.shows("/blocked", ids[0].String(), "the carrier does not answer")
	},
	"WaybillBacklog": func(b *broken) {
		b.send(b.st, "", 3)
		b.finds("doctor", nil, "no relay is alive, and 3 events are ready")
		b.shows("/", "No relay is running: 3 events cannot be delivered")
	},
	"WaybillBacklogAge": func(b *broken) {
		b.stuck()
		b.shows("/", "has been down for", "connection refused")
		b.shows("/doctor", "the oldest has waited for 6m")
		b.finds("doctor", nil, "the oldest has waited for 6m")
	},
	"WaybillFailed, WaybillAttempts": func(b *broken) {
		ids := b.rejects(errCarrier, "retry")
		b.finds("list --state failed", nil, ids[0].String(), "the carrier does not answer")
		b.shows("/events?state=failed", ids[0].String(), "the carrier does not answer")
	},
	"WaybillDead": func(b *broken) {
		ids := b.rejects(errCustomer, "dead")
		b.finds("dead list", nil, ids[0].String(), "no such customer")
		b.shows("/dead", ids[0].String(), "no such customer")
	},
	"WaybillPublishLatency": func(b *broken) {
		b.stuck()
		b.finds("stats", nil, "lag 6m")
		b.shows("/", "Oldest ready 6 min")
	},
	"WaybillLag": func(b *broken) {
		server := b.server(testserver.PostgresName)
		b.environ[0] = "WAYBILL_STORE=" + server.DSN
		b.must(server.Kill(b.t.Context()))
		b.finds("doctor", nil, "store fail", "connection refused")
		b.shows("/doctor", "store fail", "connection refused")
	},
	"WaybillErrorBudgetFast, WaybillErrorBudgetSlow": func(b *broken) {
		b.stuck()
		b.shows("/", "The oldest ready event has been waiting for 6 min")
		b.finds("doctor", nil, "the oldest has waited for 6m")
	},
	"WaybillNoRelay, WaybillRelayGone": func(b *broken) {
		node := b.gone()
		b.send(b.st, "", 1)
		waitFor(b.t, "the lease to end", func() bool {
			s, err := b.st.OutboxAdmin.Stats(b.t.Context())
			b.must(err)
			return len(s.Nodes) == 0
		})
		b.finds("doctor", nil, "no relay is alive, and 1 events are ready; node "+node.String()+" ended without releasing its lanes")
		b.shows("/", "No relay is running: 1 event cannot be delivered")
		b.shows("/relays", node.String(), "lapsed")
	},
	"WaybillNotCounted": func(b *broken) {
		b.deliver(b.st, relay.Destination{Sink: fails(errCarrier)})
		b.at(b.send(b.st, "", 1)[0], "retry")
		b.finds("stats", nil, "failed 1 wait for a retry")
		b.shows("/", "To be retried 1")
	},
	"WaybillCountsFail": func(b *broken) {
		b.without("SELECT", "waybill_dead")
		b.finds("doctor", nil, "may not read the tables: it lacks SELECT on", "GRANT SELECT ON", "dead letters not checked cannot be inspected", "permission denied for table waybill_dead")
		b.finds("stats", nil, "permission denied for table waybill_dead")
		b.shows("/doctor", "may not read the tables: it lacks SELECT on", "permission denied for table waybill_dead")
	},
	"WaybillReadsFail, WaybillSettlementsFail": func(b *broken) {
		b.without("DELETE", "waybill_outbox")
		b.finds("doctor", nil, "cannot be a relay: it lacks DELETE on")
		b.shows("/doctor", "cannot be a relay: it lacks DELETE on")
	},
	"WaybillLanesWithoutOwner": func(b *broken) {
		node := b.gone()
		_, err := b.st.Relay.Heartbeat(b.t.Context(), store.Node{ID: waybill.NewID(), Relay: "waybill"}, time.Hour)
		b.must(err)
		waitFor(b.t, "the lease to end", func() bool {
			s, err := b.st.OutboxAdmin.Stats(b.t.Context())
			b.must(err)
			return len(s.Nodes) == 1
		})
		b.finds("doctor", nil, "1 of 1 lanes belong to node "+node.String()+", which is gone")
		b.shows("/", "1 of 1 lanes have no live relay")
		b.shows("/relays", node.String(), "lapsed")
	},
	"WaybillRelayWithoutLanes": func(b *broken) {
		b.deliver(b.st, accepts(""))
		b.at(b.send(b.st, "", 1)[0], "delivered")
		b.deliver(b.st, accepts("")) // there is one lane
		waitFor(b.t, "the other relay", func() bool {
			s, err := b.st.OutboxAdmin.Stats(b.t.Context())
			b.must(err)
			return len(s.Nodes) == 2
		})
		b.finds("stats", nil, "relay 0", "relay 1")
		b.shows("/relays", "relay 0", "relay 1")
	},
	"WaybillDestinationPaused": func(b *broken) {
		server := b.server(testserver.RedisName)
		u, err := url.Parse(server.DSN)
		b.must(err)
		b.environ = append(b.environ, "WAYBILL_SINK="+u.String())
		b.must(server.Kill(b.t.Context()))
		b.finds("doctor", nil, "sink fail", "connection refused")
		b.shows("/doctor", "sink fail", "connection refused")
	},
	"WaybillDestinationFailed, WaybillDestinationDead": func(b *broken) {
		b.destinations(b.t.Context(), b.st)
		b.finds("list --destination NAME --state failed", []string{"NAME=partner"}, b.names["failed"], "the carrier does not answer")
		b.finds("dead list --destination NAME", []string{"NAME=partner"}, b.names["dead"], "no such customer")
		b.shows("/", "1 dead letter at destination partner", "no such customer")
		b.shows("/events?destination=partner&state=failed", b.names["failed"], "the carrier does not answer")
		b.shows("/dead?destination=partner", b.names["dead"], "no such customer")
	},
	"WaybillDestinationBacklogAge, WaybillDestinationNotResumed": func(b *broken) {
		b.destinations(b.t.Context(), b.st)
		if out, errs, code := b.run(b.t.Context(), []string{"destinations", "pause", "partner", "--reason", "the bank moves"}, ""); code != 0 {
			b.t.Fatal(out, errs)
		}
		b.finds("destinations list", nil, "partner", "the bank moves")
		b.shows("/", "Destination partner has been paused for", "the bank moves")
		b.shows("/destinations", "partner", "the bank moves")
		b.finds("destinations resume NAME", []string{"NAME=partner"}, "resumed: partner")
	},
	"WaybillGroupFailed, WaybillGroupAttempts, WaybillGroupDead": func(b *broken) {
		b.inbox(b.t.Context(), b.st)
		b.shows("/", "Consumer group BILLING cannot apply 1 event")
		b.shows("/groups?group=BILLING", b.names["i1"], "out of stock")
		b.finds("inbox list", nil, "BILLING", b.names["i1"], "out of stock")
		b.finds("inbox redrive GROUP", []string{"GROUP=BILLING", "--all", "--yes"}, "redriven: 1")
	},
	"WaybillGroupAge": func(b *broken) {
		b.inbox(b.t.Context(), b.st)
		b.finds("inbox list --group GROUP", []string{"GROUP=BILLING"}, b.names["i2"], "out of stock")
		b.shows("/groups?group=BILLING", b.names["i2"], "out of stock")
	},
	"WaybillGroupGone": func(b *broken) {
		b.inbox(b.t.Context(), b.st)
		b.finds("inbox list --group GROUP", []string{"GROUP=INVENTORY"}, b.names["i3"], "out of stock")
		b.shows("/groups?group=INVENTORY", b.names["i3"], "out of stock")
	},
	"WaybillKeysUncertain": func(b *broken) {
		b.keys(b.t.Context(), b.st)
		b.finds("keys find KEY --operation OP --tenant T --principal P", []string{"KEY=k-1", "OP=POST /orders", "T=acme", "P=ann"},
			"uncertain", "no answer from the bank")
		b.shows("/", "wait for a decision: whether the effect happened is not known")
		b.shows("/keys?state=uncertain", "POST /orders", "acme", "no answer from the bank")
		b.finds("keys resolve OPERATION KEY", []string{"OPERATION=POST /orders", "KEY=k-unsure", "--tenant", "acme", "--failed", "--yes"}, "resolved")
	},
	"WaybillKeysLapsed": func(b *broken) {
		db, ok := b.st.Relay.(driver.KeyClaimer)
		if !ok {
			b.t.Fatal("the store claims no keys")
		}
		id := store.KeyID{Tenant: "acme", Operation: "POST /orders", Key: "k-1"}
		_, taken, err := db.ClaimKey(b.t.Context(), driver.KeyClaim{KeyID: id, Hash: "v1:" + strings.Repeat("a", 64), Owner: waybill.NewID(), Lease: time.Millisecond})
		if err != nil || !taken {
			b.t.Fatal(taken, err)
		}
		b.finds("keys list", nil, "acme POST /orders processing 1")
		b.shows("/keys", "POST /orders", "lapsed")
	},
	"WaybillReconcileFound": func(b *broken) {
		b.account(func(u *url.URL) {
			q := u.Query()
			q.Set("synchronous_commit", "off")
			u.RawQuery = q.Encode()
		})
		b.finds("doctor", nil, "synchronous_commit is off: a crash rolls back transactions whose events were delivered")
		b.shows("/doctor", "synchronous_commit is off")
	},
	"WaybillReconcileFailing": func(b *broken) {
		b.must(os.WriteFile("waybill.yaml", []byte("jobs:\n  orders: {sql: SELECT id AS aggregate_id FROM gone WHERE $1 < $2, type: OrderPlaced, aggregate-type: order}\n"), 0o600))
		if out, _, code := b.run(b.t.Context(), []string{"reconcile", "run", "orders"}, ""); code == 0 {
			b.t.Fatal(out)
		}
		b.finds("reconcile list", nil, "orders sql yes", `relation "gone"`)
		b.shows("/jobs", "orders failing", `relation "gone"`)
	},
}

// TestRunbook breaks what every row of docs/operating.md is about, runs the
// commands that the row names, and finds the cause in their output and on the
// pages of the dashboard.
func TestRunbook(t *testing.T) {
	rows, root := runbookRows(t), docblock.Root(t)
	if len(rows) < 20 {
		t.Errorf("docs/operating.md has %d rows", len(rows))
	}
	for name := range symptoms {
		if rows[name] == "" {
			t.Errorf("docs/operating.md has no row %q", name)
		}
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			test := symptoms[name]
			if test == nil {
				t.Fatal("the row has no test")
			}
			s := newScript(t, "postgres")
			b := &broken{script: s, st: s.open(), row: row, root: root}
			t.Cleanup(func() { b.must(b.st.Close()) })
			test(b)
			if len(b.ran) == 0 || len(b.pages) == 0 {
				t.Errorf("the test runs %d commands, and opens %d pages of the dashboard", len(b.ran), len(b.pages))
			}
			for _, m := range quotedCommand.FindAllStringSubmatch(row, -1) {
				known := slices.Contains(b.ran, m[1]) || strings.HasPrefix(m[1], "serve") || m[1] == "destinations probe NAME"
				if !known {
					t.Errorf("the test does not run waybill %s", m[1])
				}
			}
		})
	}
}
