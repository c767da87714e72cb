package admin

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The types of the audit, as the stores have them.
type (
	// AuditRecord is a change that an operator made.
	AuditRecord = driver.AuditRecord
	// AuditFilter selects records of the audit.
	AuditFilter = driver.AuditFilter
	// AuditCursor is a place in the audit.
	AuditCursor = driver.AuditCursor
)

// Actor identifies the user who makes a change, for the audit.
type Actor struct {
	// Name is the name of a user. Defaults to the user of the operating system
	// that runs the program.
	Name string
	// Via is the interface of the change, such as "cli". Defaults to "go".
	Via string
	// Address is where the request came from. Defaults to the name of the host.
	Address string
}

type actorKey struct{}

// WithActor returns a context whose changes are recorded as those of an actor.
// Every change that a method of this package makes leaves a record in the
// database, in the transaction of the change, if the store has the role Audit.
// Purges leave one only if their context has an actor, because programs purge
// periodically.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// process is the actor of changes whose context has none.
var process = sync.OnceValue(func() Actor {
	a := Actor{Name: "unknown", Via: "go"}
	if u, err := user.Current(); err == nil && u.Username != "" {
		a.Name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		a.Address = host
	}
	return a
})

// actorOf returns the actor of a context.
func actorOf(ctx context.Context) Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	def := process()
	for _, f := range []struct {
		value *string
		def   string
	}{{&a.Name, def.Name}, {&a.Via, def.Via}, {&a.Address, def.Address}} {
		if *f.value == "" {
			*f.value = f.def
		}
	}
	return a
}

// audited returns the context of a change, with its record. A change that is
// part of another one has the record of that.
func audited(ctx context.Context, action, destination, target string) context.Context {
	if _, ok := driver.AuditOf(ctx); ok {
		return ctx
	}
	a := actorOf(ctx)
	return driver.WithAudit(ctx, AuditRecord{
		ID: waybill.NewID(), Actor: a.Name, Via: a.Via, Address: a.Address, Action: action, Destination: destination, Target: target,
	})
}

// purging is audited for a purge: it has no record without an actor.
func purging(ctx context.Context, action, target string) context.Context {
	if _, ok := ctx.Value(actorKey{}).(Actor); !ok {
		return ctx
	}
	return audited(ctx, action, "", target)
}

// namedIDs is the maximum number of ids in the target of a record.
const namedIDs = 20

// idsTarget is the target of a change of these events or records.
func idsTarget(ids []waybill.ID) string {
	var texts []string
	for _, id := range ids[:min(len(ids), namedIDs)] {
		texts = append(texts, id.String())
	}
	if more := len(ids) - namedIDs; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, " ")
}

// fields joins the pairs of a name and a value whose value is not empty, and
// returns none if there are no such pairs.
func fields(none string, pairs ...string) string {
	var texts []string
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			texts = append(texts, pair[0]+"="+pair[1])
		}
	}
	if texts == nil {
		return none
	}
	return strings.Join(texts, " ")
}

// filterTarget is the target of a change of all that match a filter.
func filterTarget(f store.Filter) string {
	tenant := f.TenantID
	if f.NoTenant {
		tenant = "none"
	}
	flag := func(set bool) string {
		if set {
			return "yes"
		}
		return ""
	}
	return fields("all", "type", f.Type, "aggregate_type", f.AggregateType, "aggregate_id", f.AggregateID, "tenant_id", tenant,
		"since", moment(f.Since), "until", moment(f.Until), "cause", f.Cause, "error", quoted(f.Error), "correlation_id", f.CorrelationID,
		"holding", flag(f.Holding), "failed", flag(f.Failed && !f.Untried), "untried", flag(f.Untried))
}

// moment returns a bound of a filter, or nothing.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return utc(t)
}

// quoted returns a text with spaces in it as one word, or nothing.
func quoted(text string) string {
	if text == "" {
		return ""
	}
	return strconv.Quote(text)
}

// historyTarget is the target of a replay of the history.
func historyTarget(q driver.HistoryQuery) string {
	return fields("all", "since", moment(q.Since), "until", moment(q.Until), "types", strings.Join(q.Types, ","),
		"aggregate_types", strings.Join(q.AggregateTypes, ","), "tenants", strings.Join(q.Tenants, ","), "aggregate_id", q.AggregateID)
}

// Audit reads the records of changes. Its methods may be called concurrently.
type Audit struct {
	db  driver.Audit
	cfg Config
}

// NewAudit returns the audit of a database. The store must have the role Audit.
func NewAudit[T any](db driver.Store[T], cfg Config) (*Audit, error) {
	roles, err := driver.Get(db, "admin", "Audit")
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.complete(); err != nil {
		return nil, err
	}
	return &Audit{db: roles.Audit, cfg: cfg}, nil
}

// AuditPage is a page of records, and the start of the next page.
type AuditPage struct {
	Records []AuditRecord
	// Next is the value of before for the next page; More reports that there
	// may be one.
	Next AuditCursor
	More bool
}

// List returns matching records, the newest first: those before a cursor, which
// is zero for the first page. A limit of 0 or less means Config.BatchSize.
func (a *Audit) List(ctx context.Context, f AuditFilter, before AuditCursor, limit int) (AuditPage, error) {
	if limit <= 0 {
		limit = a.cfg.BatchSize
	}
	records, err := a.db.ListAudit(ctx, f, before, limit)
	if err != nil {
		return AuditPage{}, fmt.Errorf("admin: listing the audit: %w", err)
	}
	page := AuditPage{Records: records, Next: before, More: len(records) == limit}
	if n := len(records); n > 0 {
		page.Next = AuditCursor{At: records[n-1].At, ID: records[n-1].ID}
	}
	return page, nil
}
