// Command enrollment is a school: learners enroll in sessions, sessions finish,
// and events trigger the consequences of both. Its outbox is in memory, without
// a table of its own, and follows the transactions of the school's database: a
// crash can lose events. Two jobs search the school's own tables for rows
// without consequences, and publish their events again.
//
// To keep the outbox in the database instead, change the line that creates the
// store: testdata/table is this program after that change.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	_ "modernc.org/sqlite"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// Created and Closed are the payloads of the events: only what a consumer needs
// to look up the rest.
type Created struct {
	EnrollmentID int64 `json:"enrollmentId"`
	SessionID    int64 `json:"sessionId"`
	LearnerID    int64 `json:"learnerId"`
}

type Closed struct {
	SessionID int64 `json:"sessionId"`
}

var (
	EnrollmentCreated = waybill.Define[Created]("EnrollmentCreated", waybill.Spec{AggregateType: "enrollment"})
	SessionClosed     = waybill.Define[Closed]("SessionClosed", waybill.Spec{AggregateType: "session"})
)

// ErrAlreadyExists and ErrFull are errors of enrolling. They are decided in the
// transaction, never by an event.
var (
	ErrAlreadyExists = errors.New("ALREADY_EXISTS")
	ErrFull          = errors.New("FULL")
)

const tables = `
CREATE TABLE course_sessions (id INTEGER PRIMARY KEY, seats INTEGER NOT NULL, status TEXT NOT NULL DEFAULT 'OPEN', finished_at INTEGER);
CREATE TABLE participation_enrollment (id INTEGER PRIMARY KEY, session_id INTEGER NOT NULL, learner_id INTEGER NOT NULL,
 cancelled INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, UNIQUE (session_id, learner_id));
CREATE TABLE notification (enrollment_id INTEGER PRIMARY KEY);
CREATE TABLE payout (session_id INTEGER PRIMARY KEY);`

// School is the service. Age is how old a row must be before the jobs miss its
// consequences.
type School struct {
	rows   *sql.DB
	box    *outbox.Outbox[*sql.Tx]
	relay  *relay.Relay
	jobs   *reconcile.Reconciler[*sql.Tx]
	losing bool // the process dies after the commit, before its event is queued
}

// NewSchool wires the school over its database, and starts nothing.
func NewSchool(ctx context.Context, rows *sql.DB, age time.Duration, logger *slog.Logger) (*School, error) {
	db, err := memstore.OverDB(rows, memstore.Config{})
	if err != nil {
		return nil, err
	}
	if m := db.Driver().Migrator; m != nil { // a store with tables
		if _, err := m.Migrate(ctx); err != nil {
			return nil, err
		}
	}
	s := &School{rows: rows}
	if s.box, err = outbox.New(db, outbox.Config{}); err != nil {
		return nil, err
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		return nil, err
	}
	// Jobs publish a fact again under a new id, so consumers deduplicate by
	// dedup key.
	notify := in.MustGroup("NOTIFY", inbox.Options{Key: inbox.ByDedupKey})
	inbox.On(notify, EnrollmentCreated, func(ctx context.Context, tx *sql.Tx, _ waybill.Event, p Created) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO notification (enrollment_id) VALUES (?) ON CONFLICT DO NOTHING`, p.EnrollmentID)
		return err
	})
	settle := in.MustGroup("SETTLE", inbox.Options{Key: inbox.ByDedupKey})
	inbox.On(settle, SessionClosed, func(ctx context.Context, tx *sql.Tx, _ waybill.Event, p Closed) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO payout (session_id) VALUES (?) ON CONFLICT DO NOTHING`, p.SessionID)
		return err
	})
	if s.relay, err = relay.New(db, inbox.NewBus(notify, settle), relay.Config{PollInterval: 50 * time.Millisecond, Logger: logger}); err != nil {
		return nil, err
	}
	s.jobs, err = reconcile.New(db, jobs(rows, age), reconcile.Config{Logger: logger})
	return s, err
}

// jobs compare the school's tables, the source of truth, with the traces that
// the events should have left there.
func jobs(rows *sql.DB, age time.Duration) []reconcile.Job {
	micros := func(w reconcile.Window) []any { return []any{w.From.UnixMicro(), w.To.UnixMicro()} }
	return []reconcile.Job{
		{
			Name: "enrollment-reconcile", Schedule: reconcile.Every(time.Minute), LookBack: time.Hour, MinAge: age,
			Find: reconcile.QueryFind(rows, reconcile.Query{
				SQL: `SELECT e.id AS aggregate_id, 'enrollment:' || e.id AS dedup_key,
  json_object('enrollmentId', e.id, 'sessionId', e.session_id, 'learnerId', e.learner_id) AS payload
FROM participation_enrollment e LEFT JOIN notification n ON n.enrollment_id = e.id
WHERE e.created_at >= ? AND e.created_at < ? AND NOT e.cancelled AND n.enrollment_id IS NULL ORDER BY e.id`,
				Args: micros, Event: waybill.Event{Type: EnrollmentCreated.Type(), AggregateType: EnrollmentCreated.AggregateType()},
			}),
		},
		{
			Name: "session-payout-reconcile", Schedule: reconcile.Every(5 * time.Minute), LookBack: 24 * time.Hour, MinAge: age,
			Find: reconcile.QueryFind(rows, reconcile.Query{
				SQL: `SELECT s.id AS aggregate_id, json_object('sessionId', s.id) AS payload FROM course_sessions s LEFT JOIN payout p ON p.session_id = s.id
WHERE s.status = 'FINISHED' AND s.finished_at >= ? AND s.finished_at < ? AND p.session_id IS NULL ORDER BY s.id`,
				Args: micros, Event: waybill.Event{Type: SessionClosed.Type(), AggregateType: SessionClosed.AggregateType()},
			}),
		},
	}
}

// Enroll takes a seat for a learner and emits the event, all in one
// transaction.
func (s *School) Enroll(ctx context.Context, session, learner int64) (id int64, err error) {
	err = s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var seats, taken, mine int64
		err := tx.QueryRowContext(ctx, `SELECT seats, (SELECT count(*) FROM participation_enrollment WHERE session_id = ?1),
 (SELECT count(*) FROM participation_enrollment WHERE session_id = ?1 AND learner_id = ?2) FROM course_sessions WHERE id = ?1`,
			session, learner).Scan(&seats, &taken, &mine)
		switch {
		case err != nil:
			return err
		case mine > 0:
			return ErrAlreadyExists
		case taken >= seats:
			return ErrFull
		}
		err = tx.QueryRowContext(ctx, `INSERT INTO participation_enrollment (session_id, learner_id, created_at) VALUES (?, ?, ?) RETURNING id`,
			session, learner, time.Now().UnixMicro()).Scan(&id)
		if err != nil {
			return err
		}
		ev := EnrollmentCreated.New(strconv.FormatInt(id, 10), Created{EnrollmentID: id, SessionID: session, LearnerID: learner})
		ev.DedupKey = waybill.DedupKey("enrollment", ev.AggregateID)
		return s.tell(ctx, tx, ev)
	})
	return id, err
}

// Finish ends a session.
func (s *School) Finish(ctx context.Context, session int64) error {
	return s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE course_sessions SET status = 'FINISHED', finished_at = ? WHERE id = ?`, time.Now().UnixMicro(), session)
		if err != nil {
			return err
		}
		ev := SessionClosed.New(strconv.FormatInt(session, 10), Closed{SessionID: session})
		ev.DedupKey = ev.NaturalKey()
		return s.tell(ctx, tx, ev)
	})
}

// tell is the last step of a transaction.
func (s *School) tell(ctx context.Context, tx *sql.Tx, ev waybill.Event) error {
	if s.losing {
		return nil
	}
	return s.box.Write(ctx, tx, ev)
}

func main() { check(run(context.Background(), os.Stdout)) }

// run loses two events, and lets the jobs find them.
func run(ctx context.Context, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "waybill-enrollment-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder for temporary files
	rows, err := openRows(ctx, filepath.Join(dir, "school.db"))
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // it is thrown away
	s, err := NewSchool(ctx, rows, -1, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	running := make(chan error, 1)
	go func() { running <- s.relay.Run(ctx) }()
	if _, err := rows.ExecContext(ctx, `INSERT INTO course_sessions (id, seats) VALUES (1, 2)`); err != nil {
		return err
	}
	enroll := func(learner int64) {
		id, err := s.Enroll(ctx, 1, learner)
		fmt.Fprintf(out, "Learner %d: enrollment %d, %v.\n", learner, id, err)
	}
	enroll(7)
	enroll(7)
	s.losing = true
	enroll(8)
	if err := s.Finish(ctx, 1); err != nil {
		return err
	}
	s.losing = false
	enroll(9)
	if err := s.await(ctx, 1, 0); err != nil {
		return err
	}
	for _, job := range []string{"enrollment-reconcile", "session-payout-reconcile"} {
		rep, err := s.jobs.RunOnce(ctx, job)
		fmt.Fprintf(out, "%s: %d found, %d sent, %v.\n", job, rep.Found, rep.Sent, err)
	}
	if err := s.await(ctx, 2, 1); err != nil {
		return err
	}
	fmt.Fprintln(out, "Notified: 2. Paid: 1.")
	stop()
	return <-running
}

// await waits for the given numbers of notified and paid rows.
func (s *School) await(ctx context.Context, notified, paid int) error {
	for deadline := time.Now().Add(time.Minute); ; {
		var n, p int
		err := s.rows.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM notification), (SELECT count(*) FROM payout)`).Scan(&n, &p)
		if err != nil || n == notified && p == paid {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d are notified and %d paid, want %d and %d", n, p, notified, paid)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// openRows opens the school's database and creates its tables.
func openRows(ctx context.Context, file string) (*sql.DB, error) {
	rows, err := sql.Open("sqlite", "file:"+filepath.ToSlash(file)+"?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000")
	if err != nil {
		return nil, err
	}
	_, err = rows.ExecContext(ctx, tables)
	return rows, err
}
