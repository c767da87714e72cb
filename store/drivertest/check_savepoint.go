package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// savepointChecks check savepoints, with the driver's API and with SQL text.
func savepointChecks[T any]() []check[T] {
	type way = struct {
		row   string
		needs feature
		run   func(ctx context.Context, b *env[T], tx T, fn func(tx T) error) error
	}
	var all []check[T]
	for _, w := range []way{{"savepoints_are_respected", savepoints, savepointDriver[T]}, {"savepoints_in_sql_are_respected", savepointSQL, savepointText[T]}} {
		for _, c := range []struct {
			name string
			run  func(sp savepoint[T]) func(context.Context, tb, *env[T])
		}{
			{"rolled back", savepointRolledBack[T]},
			{"rolled back without hooks", savepointWithoutHooks[T]},
			{"everything rolled back", savepointEverything[T]},
			{"released", savepointReleased[T]},
			{"nested", savepointNested[T]},
			{"dedup keys", savepointKeys[T]},
			{"many", savepointMany[T]},
		} {
			all = append(all, check[T]{row: w.row, name: c.name, needs: w.needs, run: c.run(w.run)})
		}
	}
	return all
}

// savepoint runs fn in a savepoint and rolls back to it if fn fails.
type savepoint[T any] func(ctx context.Context, b *env[T], tx T, fn func(tx T) error) error

// savepointDriver creates a savepoint with the driver's API.
func savepointDriver[T any](ctx context.Context, b *env[T], tx T, fn func(tx T) error) error {
	if b.features.SavepointAPI {
		return b.Savepoint(ctx, tx, fn)
	}
	return savepointText(ctx, b, tx, fn) // the driver has no savepoint API
}

func savepointText[T any](ctx context.Context, b *env[T], tx T, fn func(tx T) error) error {
	name := fmt.Sprintf("sp%d", b.count.Add(1))
	if err := b.Exec(ctx, tx, "SAVEPOINT "+name); err != nil {
		return err
	}
	err := fn(tx)
	if err != nil {
		if back := b.Exec(ctx, tx, "ROLLBACK TO SAVEPOINT "+name); back != nil {
			return errors.Join(err, back)
		}
	}
	return errors.Join(err, b.Exec(ctx, tx, "RELEASE SAVEPOINT "+name))
}

// swallow asserts that a savepoint returned the function's own error.
func swallow(t tb, err error) {
	t.Helper()
	if !errors.Is(err, errBoom) {
		t.Fatalf("the savepoint returned %v, want the function's own error", err)
	}
}

func savepointRolledBack[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		var hooks record
		box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
		before, gone, after := b.events(2, "a"), b.events(3, "a"), b.events(2, "a")
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := errors.Join(b.insert(ctx, tx, "before"), box.Write(ctx, tx, before...)); err != nil {
				return err
			}
			swallow(t, sp(ctx, b, tx, func(tx T) error {
				if err := errors.Join(b.insert(ctx, tx, "gone"), box.Write(ctx, tx, gone[:2]...)); err != nil {
					return err
				}
				_, err := box.WriteEach(ctx, tx, gone[2])
				return errors.Join(err, errBoom)
			}))
			return errors.Join(box.Write(ctx, tx, after...), b.insert(ctx, tx, "after"))
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		left := slices.Concat(before, after)
		b.wantReady(ctx, t, left...)
		b.wantNotes(ctx, t, "before", 1)
		b.wantNotes(ctx, t, "gone", 0)
		b.wantNotes(ctx, t, "after", 1)
		b.wantCommitted(ctx, t, false, gone...)
		wantBatches(t, "AfterCommit", hooks.committed, batch(left...))
		wantBatches(t, "AfterRollback", hooks.rolledBk, nil)
		wantHeard(t, heard.heard(), left, gone)
	}
}

// wantHeard asserts that the hub published one transaction, with exactly the
// events that have rows; if the commit is not checked, undone events may be
// among them.
func wantHeard(t tb, commits []driver.Commit, left, gone []waybill.Event) {
	t.Helper()
	if len(commits) != 1 {
		t.Errorf("the hub published one transaction %d times", len(commits))
		return
	}
	var got []waybill.ID
	for _, e := range commits[0].Entries {
		if !commits[0].Checked && slices.Contains(idsOf(gone), e.Event.ID) {
			continue
		}
		got = append(got, e.Event.ID)
	}
	if want := idsOf(left); !slices.Equal(got, want) {
		t.Errorf("the hub published %v (checked: %v), want %v", got, commits[0].Checked, want)
	}
}

// savepointWithoutHooks has no hook that needs the committed events: the store
// may then skip the check.
func savepointWithoutHooks[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		box, heard := b.box(t), b.listen(b.DB.Outbox)
		kept, gone := b.event("a"), b.event("a")
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := box.Write(ctx, tx, kept); err != nil {
				return err
			}
			swallow(t, sp(ctx, b, tx, func(tx T) error { return errors.Join(box.Write(ctx, tx, gone), errBoom) }))
			// The rollback to the savepoint is the transaction's last
			// statement.
			return nil
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		b.wantReady(ctx, t, kept)
		wantHeard(t, heard.heard(), []waybill.Event{kept}, []waybill.Event{gone})
	}
}

func savepointEverything[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		var hooks record
		box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
		gone := b.events(2, "a")
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			swallow(t, sp(ctx, b, tx, func(tx T) error { return errors.Join(box.Write(ctx, tx, gone...), errBoom) }))
			return b.insert(ctx, tx, "note")
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		b.wantReady(ctx, t)
		b.wantNotes(ctx, t, "note", 1)
		wantBatches(t, "AfterCommit", hooks.committed, nil)
		wantBatches(t, "AfterRollback", hooks.rolledBk, nil)
		for _, c := range heard.heard() {
			if c.Checked && len(c.Entries) > 0 {
				t.Errorf("the hub published events without rows as checked: %v", c.Entries)
			}
		}
	}
}

func savepointReleased[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		var hooks record
		box := b.box(t, hooks.hook())
		evs := b.events(4, "a")
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := box.Write(ctx, tx, evs[0]); err != nil {
				return err
			}
			if err := sp(ctx, b, tx, func(tx T) error { return box.Write(ctx, tx, evs[1], evs[2]) }); err != nil {
				return err
			}
			return box.Write(ctx, tx, evs[3])
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		b.wantReady(ctx, t, evs...)
		hooks.want(t, evs, batch(evs...), nil)
		// Released savepoints are rolled back with the transaction.
		lost := b.events(2, "a")
		err = box.InTx(ctx, func(ctx context.Context, tx T) error {
			err := sp(ctx, b, tx, func(tx T) error { return box.Write(ctx, tx, lost...) })
			return errors.Join(err, errBoom)
		})
		if !errors.Is(err, errBoom) {
			t.Errorf("InTx returned %v, want the function's own error", err)
		}
		b.wantReady(ctx, t, evs...)
	}
}

// savepointNested rolls back an inner savepoint inside a kept one, and releases
// one inside a rolled-back one.
func savepointNested[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		var hooks record
		box := b.box(t, hooks.hook())
		ev := b.events(9, "a")
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := box.Write(ctx, tx, ev[0]); err != nil {
				return err
			}
			err := sp(ctx, b, tx, func(tx T) error {
				if err := box.Write(ctx, tx, ev[1]); err != nil {
					return err
				}
				swallow(t, sp(ctx, b, tx, func(tx T) error { return errors.Join(box.Write(ctx, tx, ev[2]), errBoom) }))
				return box.Write(ctx, tx, ev[3])
			})
			if err != nil {
				return err
			}
			swallow(t, sp(ctx, b, tx, func(tx T) error {
				if err := box.Write(ctx, tx, ev[4]); err != nil {
					return err
				}
				if err := sp(ctx, b, tx, func(tx T) error { return box.Write(ctx, tx, ev[5]) }); err != nil {
					return err
				}
				swallow(t, sp(ctx, b, tx, func(tx T) error { return errors.Join(box.Write(ctx, tx, ev[6]), errBoom) }))
				return errors.Join(box.Write(ctx, tx, ev[7]), errBoom)
			}))
			return box.Write(ctx, tx, ev[8])
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		left := []waybill.Event{ev[0], ev[1], ev[3], ev[8]}
		b.wantReady(ctx, t, left...)
		wantBatches(t, "AfterCommit", hooks.committed, batch(left...))
	}
}

// savepointKeys checks that the key of an undone event is free again, and that
// a key taken before the savepoint is not.
func savepointKeys[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		box := b.box(t)
		early, gone, next := b.keyed("a", "early"), b.keyed("a", "k"), b.keyed("a", "k")
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := box.Write(ctx, tx, early); err != nil {
				return err
			}
			swallow(t, sp(ctx, b, tx, func(tx T) error {
				got, err := box.WriteEach(ctx, tx, gone, b.keyed("a", "early"))
				if err == nil {
					wantReceipts(t, got, written(gone), duplicateOf(early))
				}
				return errors.Join(err, errBoom)
			}))
			got, err := box.WriteEach(ctx, tx, next, b.keyed("a", "early"))
			if err == nil {
				wantReceipts(t, got, written(next), duplicateOf(early))
			}
			return err
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		b.wantReady(ctx, t, early, next)
		wantReceipts(t, receipts(ctx, t, box, b.keyed("a", "k"), b.keyed("a", "early")), duplicateOf(next), duplicateOf(early))

		// The key is free for all writers if no event takes it again.
		err = box.InTx(ctx, func(ctx context.Context, tx T) error {
			swallow(t, sp(ctx, b, tx, func(tx T) error { return errors.Join(box.Write(ctx, tx, b.keyed("a", "free")), errBoom) }))
			return nil
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		free := b.keyed("a", "free")
		wantReceipts(t, receipts(ctx, t, box, free), written(free))
	}
}

func savepointMany[T any](sp savepoint[T]) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		var hooks record
		box := b.box(t, hooks.hook())
		var left []waybill.Event
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			for i := range 25 {
				ev := b.event("a")
				err := sp(ctx, b, tx, func(tx T) error {
					if err := box.Write(ctx, tx, ev); err != nil || i%3 > 0 {
						return err
					}
					return errBoom
				})
				if i%3 == 0 {
					swallow(t, err)
					continue
				}
				if err != nil {
					return err
				}
				left = append(left, ev)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		b.wantReady(ctx, t, left...)
		wantBatches(t, "AfterCommit", hooks.committed, batch(left...))
	}
}
