package cdc_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

// read is an insert in the log.
type read struct {
	columns map[string]string
	at      time.Time // commit time, by the database's clock
}

// reader is a client of the log, like a CDC tool.
type reader struct {
	mu   sync.Mutex
	seen []read
}

func (r *reader) of(id waybill.ID) []read {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []read
	for _, e := range r.seen {
		if e.columns["id"] == id.UUID() {
			out = append(out, e)
		}
	}
	return out
}

// follow reads a publication until the test ends.
func follow(t *testing.T, dsn, publication string) *reader {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), dsn+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}
	slot, err := pglogrepl.CreateReplicationSlot(t.Context(), conn, "waybill", "pgoutput", pglogrepl.CreateReplicationSlotOptions{Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	from, err := pglogrepl.ParseLSN(slot.ConsistentPoint)
	if err != nil {
		t.Fatal(err)
	}
	err = pglogrepl.StartReplication(t.Context(), conn, "waybill", from, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx, conn) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		_ = conn.Close(context.Background())
	})
	return r
}

func (r *reader) run(ctx context.Context, conn *pgconn.PgConn) error {
	relations := make(map[uint32]*pglogrepl.RelationMessage)
	var open []read
	for {
		msg, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		data, ok := msg.(*pgproto3.CopyData)
		if !ok || data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		log, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			return err
		}
		parsed, err := pglogrepl.Parse(log.WALData)
		if err != nil {
			return err
		}
		switch m := parsed.(type) {
		case *pglogrepl.RelationMessage:
			relations[m.RelationID] = m
		case *pglogrepl.InsertMessage:
			open = append(open, read{columns: columns(relations[m.RelationID], m.Tuple)})
		case *pglogrepl.CommitMessage:
			r.mu.Lock()
			for _, e := range open {
				e.at = m.CommitTime
				r.seen = append(r.seen, e)
			}
			r.mu.Unlock()
			open = nil
		}
	}
}

func columns(rel *pglogrepl.RelationMessage, tuple *pglogrepl.TupleData) map[string]string {
	out := map[string]string{"": rel.RelationName}
	for i, c := range tuple.Columns {
		if c.DataType == pglogrepl.TupleDataTypeText {
			out[rel.Columns[i].Name] = string(c.Data)
		}
	}
	return out
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited for long: %s", what)
		}
		<-tick.C
	}
}

// env is an outbox without a relay, set up according to docs/sql.md, and a
// reader of its log.
type env struct {
	pool     *pgxpool.Pool
	db       *pgstore.Store
	box      *outbox.Outbox[pgx.Tx]
	ops      *admin.Outbox
	log      *reader
	deletion string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	server := private.Start(t, testserver.PostgresName)
	b := &env{}
	var err error
	if b.pool, err = pgxpool.New(t.Context(), server.DSN); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pool.Close)
	if b.db, err = pgstore.New(b.pool, pgstore.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.box, err = outbox.New(b.db, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	if b.ops, err = admin.NewOutbox(b.db, admin.Config{}); err != nil {
		t.Fatal(err)
	}
	statements := docblock.Blocks(t, "docs/sql.md", "sql postgresql-cdc")
	if len(statements) != 2 {
		t.Fatalf("docs/sql.md has %d statements for CDC, want the publication and the deletion", len(statements))
	}
	b.exec(t, statements[0])
	b.deletion = statements[1]
	settings := docblock.Blocks(t, "docs/sql.md", "properties")[0]
	publication := regexp.MustCompile(`(?m)^publication.name=(.+)$`).FindStringSubmatch(settings)
	if publication == nil || !strings.Contains(settings, "\ntable.include.list=public.waybill_outbox\n") {
		t.Fatal("docs/sql.md does not name the publication and the table")
	}
	b.log = follow(t, server.DSN, publication[1])
	return b
}

func (b *env) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := b.pool.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func (b *env) write(t *testing.T, ev waybill.Event) outbox.Receipt {
	t.Helper()
	var out []outbox.Receipt
	err := b.box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = b.box.WriteEach(ctx, tx, ev)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// published waits until the log shows an event, and checks that it does so
// once.
func (b *env) published(t *testing.T, id waybill.ID) read {
	t.Helper()
	wait(t, "the log shows "+id.String(), func() bool { return len(b.log.of(id)) > 0 })
	seen := b.log.of(id)
	if len(seen) != 1 || seen[0].columns[""] != "waybill_outbox" {
		t.Fatalf("the log shows %s as %v", id, seen)
	}
	return seen[0]
}

func event(key string, delay time.Duration) waybill.Event {
	return waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "A-1", DedupKey: key, Delay: delay, Payload: []byte(`{"n":1}`)}
}

// TestPostgres follows docs/sql.md: every event is in the log once, delayed
// events when they are due, and a key is free when its row is deleted.
func TestPostgres(t *testing.T) {
	b := newEnv(t)
	plain, keyed := b.write(t, event("", 0)), b.write(t, event("k", 0))
	late := b.write(t, event("late", 500*time.Millisecond))
	if got := b.published(t, keyed.ID).columns; got["dedup_key"] != "k" || got["type"] != "OrderPlaced" || got["aggregate_id"] != "A-1" {
		t.Errorf("the log shows %v", got)
	}
	b.published(t, plain.ID)

	capturer, err := b.ops.Capturer(admin.Capture{Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- capturer.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	seen := b.published(t, late.ID)
	var due time.Time
	if err := b.pool.QueryRow(t.Context(), `SELECT available_at FROM waybill_outbox WHERE id = $1`, late.ID.UUID()).Scan(&due); err != nil {
		t.Fatal(err)
	}
	if seen.at.Before(due) {
		t.Errorf("a delayed event was in the log at %v, and due at %v", seen.at, due)
	}
	if r := b.write(t, event("late", 0)); r.Outcome != outbox.Duplicate || r.ID != late.ID {
		t.Errorf("while the row is there, its key gives %+v", r)
	}

	for name, deletion := range map[string]func(){
		"the documented statement": func() { b.exec(t, b.deletion) },
		"PurgeWritten": func() {
			if n, err := b.ops.PurgeWritten(t.Context(), 7*24*time.Hour, nil); err != nil || n == 0 {
				t.Errorf("PurgeWritten: %d, %v", n, err)
			}
		},
	} {
		// of the first event, or of the first one after the last deletion
		old := b.write(t, event("k", 0)).ID
		// Written long ago, and due just now: the reader may not have read it
		// yet.
		b.exec(t, `UPDATE waybill_outbox SET created_at = now() - interval '8 days'`)
		deletion()
		if !b.there(t, late.ID) {
			t.Fatalf("%s deleted an event that became due just now", name)
		}
		if b.there(t, old) {
			t.Fatalf("%s left an event that is old enough", name)
		}
		if _, err := b.db.Driver().Outbox.Committed(t.Context(), old); !errors.Is(err, waybill.ErrUncertain) {
			t.Errorf("after %s, Committed of an event that is gone: %v, want uncertain", name, err)
		}
		again := b.write(t, event("k", 0))
		if again.Outcome != outbox.Written {
			t.Fatalf("after %s, its key gives %+v", name, again)
		}
		b.published(t, again.ID)
	}

	// A row was deleted without its key: tidying frees the key.
	b.exec(t, `DELETE FROM waybill_outbox WHERE dedup_key = 'k'`)
	if r := b.write(t, event("k", 0)); r.Outcome != outbox.Duplicate {
		t.Fatalf("a key that was left behind gives %+v", r)
	}
	if err := b.db.Driver().OutboxAdmin.Tidy(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	r := b.write(t, event("k", 0))
	if r.Outcome != outbox.Written {
		t.Errorf("after Tidy, a key that was left behind gives %+v", r)
	}
	b.published(t, r.ID)
}

func (b *env) there(t *testing.T, id waybill.ID) bool {
	t.Helper()
	var there bool
	if err := b.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM waybill_outbox WHERE id = $1)`, id.UUID()).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}
