package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
)

// told is the output of the program, with its outbox in memory or in a table.
const told = `Learner 7: enrollment 1, <nil>.
Learner 7: enrollment 0, ALREADY_EXISTS.
Learner 8: enrollment 2, <nil>.
Learner 9: enrollment 0, FULL.
enrollment-reconcile: 1 found, 1 sent, <nil>.
session-payout-reconcile: 1 found, 1 sent, <nil>.
Notified: 2. Paid: 1.
`

func TestEnrollment(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil || out.String() != told {
		t.Errorf("%v; it says:\n%s", err, out.String())
	}
}

// TestTableBackedTwin: moving the outbox from memory into a table changes the
// line that creates it and its import, and no behavior.
func TestTableBackedTwin(t *testing.T) {
	read := func(name string) []string {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, code, ok := strings.Cut(string(source), "\n)\n") // after the imports
		if !ok {
			t.Fatalf("%s has no imports", name)
		}
		return strings.Split(code, "\n")
	}
	twin := filepath.Join("testdata", "table")
	memory, table := read("main.go"), read(filepath.Join(twin, "main.go"))
	if len(memory) != len(table) || len(memory) < 150 {
		t.Fatalf("%d and %d lines", len(memory), len(table))
	}
	var differ []string
	for i := range memory {
		if memory[i] != table[i] {
			differ = append(differ, memory[i], table[i])
		}
	}
	if len(differ) != 2 || !strings.Contains(differ[0], "memstore.OverDB(") || !strings.Contains(differ[1], "sqlitestore.New(") {
		t.Errorf("these lines differ:\n%s", strings.Join(differ, "\n"))
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Dir = twin
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != told {
		t.Errorf("%v; the twin says:\n%s", err, out)
	}
}

// school opens a school over a database file, and runs its relay until stop is
// called, or the test ends.
func school(t *testing.T, rows *sql.DB, logger *slog.Logger) (s *School, stop func()) {
	t.Helper()
	s, err := NewSchool(t.Context(), rows, -1, logger)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

// database creates the school's tables, with one session.
func database(t *testing.T, seats int) *sql.DB {
	t.Helper()
	rows, err := openRows(t.Context(), filepath.Join(t.TempDir(), "school.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	if _, err := rows.ExecContext(t.Context(), `INSERT INTO course_sessions (id, seats) VALUES (1, ?)`, seats); err != nil {
		t.Fatal(err)
	}
	return rows
}

var quiet = slog.New(slog.DiscardHandler)

// TestConcurrentEnrollmentNeverOversells: many learners enroll at once, and no
// seat is sold twice.
func TestConcurrentEnrollmentNeverOversells(t *testing.T) {
	rows := database(t, 5)
	s, _ := school(t, rows, quiet)
	var got, full atomic.Int64
	var all sync.WaitGroup
	for learner := range int64(20) {
		all.Go(func() {
			switch _, err := s.Enroll(t.Context(), 1, learner); {
			case err == nil:
				got.Add(1)
			case errors.Is(err, ErrFull):
				full.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got.Load() != 5 || full.Load() != 15 {
		t.Errorf("%d are enrolled and %d refused, want 5 and 15", got.Load(), full.Load())
	}
	if err := s.await(t.Context(), 5, 0); err != nil {
		t.Error(err)
	}
}

// TestLostEventIsRepaired: an enrollment whose event was lost is found, and its
// handler runs.
func TestLostEventIsRepaired(t *testing.T) {
	s, _ := school(t, database(t, 5), quiet)
	s.losing = true
	if _, err := s.Enroll(t.Context(), 1, 7); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.jobs.Run(ctx) }()
	if err := s.await(t.Context(), 1, 0); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRepeatedEnrollment: enrolling twice is ALREADY_EXISTS, and an event that
// is published twice has one effect.
func TestRepeatedEnrollment(t *testing.T) {
	rows := database(t, 5)
	s, _ := school(t, rows, quiet)
	id, err := s.Enroll(t.Context(), 1, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Enroll(t.Context(), 1, 7); !errors.Is(err, ErrAlreadyExists) {
		t.Errorf("the second time: %v", err)
	}
	if err := s.await(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	// The trace is lost, so the job publishes the event again; the group does
	// not apply it again.
	if _, err := rows.ExecContext(t.Context(), `DELETE FROM notification WHERE enrollment_id = ?`, id); err != nil {
		t.Fatal(err)
	}
	var rep reconcile.Report
	for range 3 {
		if rep, err = s.jobs.RunOnce(t.Context(), "enrollment-reconcile"); err != nil {
			t.Fatal(err)
		}
	}
	if rep.Found != 1 || rep.Skipped != 1 {
		t.Errorf("the third run: %+v", rep)
	}
	if err := s.Finish(t.Context(), 1); err != nil { // which follows it
		t.Fatal(err)
	}
	if err := s.await(t.Context(), 0, 1); err != nil {
		t.Error(err)
	}
}

// TestJobsUseTheKeyOfTheOriginal: a job publishes a fact under the dedup key of
// the original event. While the original is pending, the outbox absorbs the
// job's event; when the original is applied, the group knows the key and does
// not apply the event again.
func TestJobsUseTheKeyOfTheOriginal(t *testing.T) {
	jobs := []string{"enrollment-reconcile", "session-payout-reconcile"}
	rows := database(t, 5)
	s, err := NewSchool(t.Context(), rows, -1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Enroll(t.Context(), 1, 7); err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, job := range jobs {
		if rep, err := s.jobs.RunOnce(t.Context(), job); err != nil || rep.Found != 1 || rep.Skipped != 1 || rep.Sent != 0 {
			t.Errorf("%s while the original is pending: %+v, %v", job, rep, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.relay.Run(ctx) }()
	if err := s.await(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	// The traces are lost, so each job publishes its event again, and the relay
	// delivers it: the key is free again.
	if _, err := rows.ExecContext(t.Context(), `DELETE FROM notification; DELETE FROM payout`); err != nil {
		t.Fatal(err)
	}
	for _, job := range jobs {
		// the original may not be settled yet
		for deadline := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
			rep, err := s.jobs.RunOnce(t.Context(), job)
			if err != nil || rep.Found != 1 || time.Now().After(deadline) {
				t.Fatalf("%s when the trace is lost: %+v, %v", job, rep, err)
			}
			if rep.Sent == 1 {
				break
			}
		}
	}
	again := EnrollmentCreated.New("1", Created{EnrollmentID: 1, SessionID: 1, LearnerID: 7})
	again.DedupKey = "enrollment:1"
	s.awaitFree(t, again)
	closed := SessionClosed.New("1", Closed{SessionID: 1})
	closed.DedupKey = closed.NaturalKey()
	s.awaitFree(t, closed)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.await(t.Context(), 0, 0); err != nil {
		t.Error(err)
	}
}

// awaitFree writes an event until no event with its key is pending.
func (s *School) awaitFree(t *testing.T, ev waybill.Event) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		var got []outbox.Receipt
		err := s.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) (err error) {
			got, err = s.box.WriteEach(ctx, tx, ev)
			return err
		})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the event under the key %s: %v, %v", ev.DedupKey, got, err)
		}
		if got[0].Outcome != outbox.Duplicate {
			return
		}
	}
}

// TestRestartRepairsWhatWasQueued: events that were queued when the process
// ended are lost; after the restart the jobs publish them again, and the log
// reports it.
func TestRestartRepairsWhatWasQueued(t *testing.T) {
	rows := database(t, 5)
	dead, stop := school(t, rows, quiet)
	stop() // so that nothing is delivered
	for learner := range int64(3) {
		if _, err := dead.Enroll(t.Context(), 1, learner); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.Finish(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, _ := school(t, rows, slog.New(slog.NewTextHandler(&log, nil)))
	for _, job := range []string{"enrollment-reconcile", "session-payout-reconcile"} {
		if _, err := s.jobs.RunOnce(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.await(t.Context(), 3, 1); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"job=enrollment-reconcile found=3 sent=3", "job=session-payout-reconcile found=1 sent=1"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

// TestCanceledAndYoungAreLeftAlone: a canceled enrollment has no consequences,
// and the event of a young one may be in flight.
func TestCanceledAndYoungAreLeftAlone(t *testing.T) {
	rows := database(t, 5)
	s, err := NewSchool(t.Context(), rows, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	s.losing = true
	for learner := range int64(3) {
		if _, err := s.Enroll(t.Context(), 1, learner); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-10 * time.Minute).UnixMicro()
	if _, err := rows.ExecContext(t.Context(), `UPDATE participation_enrollment SET created_at = ?, cancelled = id = 2 WHERE id < 3`, old); err != nil {
		t.Fatal(err)
	}
	rep, err := s.jobs.DryRun(t.Context(), "enrollment-reconcile")
	if err != nil || len(rep.Events) != 1 || rep.Events[0].DedupKey != "enrollment:1" || rep.Events[0].Type != "EnrollmentCreated" {
		t.Errorf("the dry run: %+v, %v", rep, err)
	}
}
