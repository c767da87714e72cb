package drivertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// hookChecks check what hooks may and may not change.
func hookChecks[T any]() []check[T] {
	return []check[T]{
		{row: "hooks_before_the_write", name: "changes", run: hookChanges[T]},
		{row: "hooks_before_the_write", name: "suppresses all", run: hookSuppresses[T]},
		{row: "hooks_before_the_write", name: "suppresses some", run: hookSuppressesSome[T]},
		{row: "hooks_before_the_write", name: "fails", run: hookFails[T]},
		{row: "hooks_change_nothing_after_the_write", name: "panics after the write", run: hookPanics[T]},
	}
}

func before(fn func(evs []waybill.Event) ([]waybill.Event, error)) outbox.Hook {
	return outbox.Hook{BeforeWrite: func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) { return fn(info.Events) }}
}

func hookChanges[T any](ctx context.Context, t tb, b *env[T]) {
	extra := b.event("b")
	first := before(func(evs []waybill.Event) ([]waybill.Event, error) {
		for i := range evs {
			evs[i].Headers = map[string]string{"by": "first"}
			evs[i].Topic = "first"
		}
		return append(evs, extra), nil
	})
	second := before(func(evs []waybill.Event) ([]waybill.Event, error) {
		for i := range evs {
			evs[i].Headers = maps.Clone(evs[i].Headers)
			if evs[i].Headers == nil {
				evs[i].Headers = map[string]string{}
			}
			evs[i].Headers["then"] = "second"
			evs[i].Topic += "+second"
			evs[i].Payload = []byte(`"changed"`)
		}
		return evs, nil
	})
	box := b.box(t, first, second)
	ev := b.event("a")
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		receipts, err := box.WriteEach(ctx, tx, ev)
		if want := []outbox.Receipt{{ID: ev.ID, Outcome: outbox.Written}}; err == nil && !slices.Equal(receipts, want) {
			t.Errorf("WriteEach returned %v, want %v", receipts, want)
		}
		return err
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	rows := b.wantReady(ctx, t, ev, extra)
	if len(rows) != 2 {
		return
	}
	want := map[string]string{"by": "first", "then": "second"}
	if got := rows[0].Event; !maps.Equal(got.Headers, want) || got.Topic != "first+second" || string(got.Payload) != `"changed"` {
		t.Errorf("stored are headers %v, topic %q, payload %s", got.Headers, got.Topic, got.Payload)
	}
	if got := rows[1].Event; !maps.Equal(got.Headers, map[string]string{"then": "second"}) || got.Topic != "+second" {
		t.Errorf("the event that a hook added is stored with headers %v, topic %q", got.Headers, got.Topic)
	}
}

func hookSuppresses[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	later := 0
	box := b.box(t, hooks.hook(),
		before(func([]waybill.Event) ([]waybill.Event, error) { return nil, nil }),
		before(func(evs []waybill.Event) ([]waybill.Event, error) { later++; return evs, nil }))
	heard := b.listen(b.DB.Outbox)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		receipts, err := box.WriteEach(ctx, tx, b.events(2, "a")...)
		want := []outbox.Receipt{{Outcome: outbox.Suppressed}, {Outcome: outbox.Suppressed}}
		if err == nil && !slices.Equal(receipts, want) {
			t.Errorf("WriteEach returned %v, want %v", receipts, want)
		}
		return errors.Join(err, box.Write(ctx, tx, b.event("a")), b.insert(ctx, tx, "note"))
	})
	if err != nil {
		t.Errorf("InTx: %v", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 1)
	hooks.want(t, nil, nil, nil)
	if later != 0 {
		t.Errorf("a later hook was called %d times with nothing to write", later)
	}
	if commits := heard.heard(); len(commits) > 0 {
		t.Errorf("the hub published suppressed events: %v", commits)
	}
}

func hookSuppressesSome[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(4, "a")
	evs[1].Type, evs[3].Type = "secret", "secret"
	box := b.box(t, before(func(evs []waybill.Event) ([]waybill.Event, error) {
		return slices.DeleteFunc(evs, func(ev waybill.Event) bool { return ev.Type == "secret" }), nil
	}))
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		receipts, err := box.WriteEach(ctx, tx, evs...)
		want := []outbox.Receipt{
			{ID: evs[0].ID, Outcome: outbox.Written},
			{Outcome: outbox.Suppressed},
			{ID: evs[2].ID, Outcome: outbox.Written},
			{Outcome: outbox.Suppressed},
		}
		if err == nil && !slices.Equal(receipts, want) {
			t.Errorf("WriteEach returned %v, want %v", receipts, want)
		}
		return err
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, evs[0], evs[2])
}

func hookFails[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook(), before(func([]waybill.Event) ([]waybill.Event, error) { return nil, errBoom }))
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := b.insert(ctx, tx, "note"); err != nil {
			return err
		}
		return box.Write(ctx, tx, b.event("a"))
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the hook's error", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
	hooks.want(t, nil, nil, nil)
}

func hookPanics[T any](ctx context.Context, t tb, b *env[T]) {
	var mu sync.Mutex
	var called []string
	bad := func(name string) {
		mu.Lock()
		called = append(called, name)
		mu.Unlock()
		panic("hook " + name)
	}
	var log lines
	var hooks record
	box := boxOver(t, b.DB.Outbox, outbox.Config{
		Logger: log.logger(),
		Hooks: []outbox.Hook{
			{
				AfterWrite:    func(context.Context, outbox.AfterWriteInfo) { bad("write") },
				AfterCommit:   func(context.Context, outbox.AfterCommitInfo) { bad("commit") },
				AfterRollback: func(context.Context, outbox.AfterRollbackInfo) { bad("rollback") },
			},
			hooks.hook(), // after the one that panics
		},
	})
	kept, lost := b.event("a"), b.event("a")
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		return errors.Join(
			box.AfterCommit(ctx, func() { panic("callback commit") }),
			b.insert(ctx, tx, "kept"), box.Write(ctx, tx, kept))
	})
	if err != nil {
		t.Errorf("InTx: %v", err)
	}
	err = box.InTx(ctx, func(ctx context.Context, tx T) error {
		_, err := box.WriteEach(ctx, tx, lost)
		return errors.Join(
			err, box.AfterRollback(ctx, func() { panic("callback rollback") }), b.insert(ctx, tx, "lost"), errBoom)
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the function's own error", err)
	}
	b.wantReady(ctx, t, kept)
	b.wantNotes(ctx, t, "kept", 1)
	b.wantNotes(ctx, t, "lost", 0)
	hooks.want(t, []waybill.Event{kept, lost}, batch(kept), batch(lost))
	if want := []string{"write", "commit", "write", "rollback"}; !slices.Equal(called, want) {
		t.Errorf("hooks were called in the order %v, want %v", called, want)
	}
	for _, want := range []string{"hook write", "hook commit", "hook rollback", "callback commit", "callback rollback"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not tell of the panic in the %s", want)
		}
	}
}
