package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// How dedup keys are taken, so that a settlement never waits for a producer.
//
// The row of a key says which pending event has it. A settlement deletes the row in the transaction that settles its event. A
// producer that finds the key taken must be sure that it is still, at this moment, and its transaction is usually at REPEATABLE READ:
// a plain SELECT shows the past. Only a lock shows the present, and it stays until the producer's transaction ends.
//
//   - A producer takes keys with INSERT … ON DUPLICATE KEY UPDATE, which changes nothing where there is a row, but locks it. It waits for
//     other open transactions that have the row, and for a settlement that deletes it. A plain INSERT would do the same with a shared
//     lock on what it meets; but two that wait for the same settlement would then both have the shared lock, both want to insert,
//     and each wait for the other: deadlock. So would two that lock the gap of a row that is gone, with a SELECT.
//   - A settlement passes over rows that are locked (SKIP LOCKED) and leaves them behind; the next one tries again, and so does Tidy. Producer P
//     absorbs its event into e1 and stays open; the relay settles e1 and cannot delete the row. P has done right: e1 was pending when
//     it looked.
//   - A row that was left behind names an event that is not pending any more. Whoever comes next, and has the row locked now, sees that
//     and takes the row over.
//   - At READ COMMITTED a plain SELECT shows the present. There a producer is absorbed on sight, and locks nothing.
//
// What is left, at REPEATABLE READ: a row was left behind, and the next producer's snapshot is older than the settlement of its event. It
// sees the event as pending and is absorbed by it. To know better it would have to lock the event's own row, and then the
// settlement would wait. To the caller it is the same as being absorbed by an event whose delivery is under way.

// dedupKey is a key of one tenant.
type dedupKey struct{ tenant, key string }

func keyOf(ev waybill.Event) dedupKey { return dedupKey{ev.TenantID, ev.DedupKey} }

// bytes returns the key's two values as arguments.
func (k dedupKey) bytes() []any { return []any{[]byte(k.tenant), []byte(k.key)} }

// compareKeys is the order in which keys are taken.
func compareKeys(a, b dedupKey) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.key, b.key))
}

// takeKeys takes the dedup keys of events, in sorted order, so that two writers cannot deadlock over one write each. The place of
// an event whose key is taken gets the id of the event that has it; of two events with one key the first gets it.
func (s *Store) takeKeys(ctx context.Context, tx querier, f facts, evs []waybill.Event, placed []store.AppendResult) error {
	first := make(map[dedupKey]waybill.ID)
	for _, ev := range evs {
		if _, again := first[keyOf(ev)]; ev.DedupKey != "" && !again {
			first[keyOf(ev)] = ev.ID
		}
	}
	if len(first) == 0 {
		return nil
	}
	keys := make([]dedupKey, 0, len(first))
	for k := range first {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	for part := range parts(keys, maxIDs) {
		if err := s.takeSorted(ctx, tx, f, part, first); err != nil {
			return err
		}
	}
	for i, ev := range evs {
		if ev.DedupKey != "" {
			placed[i].ID = first[keyOf(ev)]
		}
	}
	return nil
}

// takeSorted takes keys for the events that holders names, and puts into it who has those that are taken.
func (s *Store) takeSorted(ctx context.Context, tx querier, f facts, keys []dedupKey, holders map[dedupKey]waybill.ID) error {
	if f.readCommitted {
		seen, err := s.keyStates(ctx, tx, keys)
		if err != nil {
			return err
		}
		keys = slices.DeleteFunc(slices.Clone(keys), func(k dedupKey) bool {
			state := seen[k]
			if state.pending {
				holders[k] = state.holder
			}
			return state.pending
		})
	}
	if len(keys) == 0 {
		return nil
	}
	met, err := s.insertKeys(ctx, tx, f, keys, holders)
	if err != nil || !met {
		return err
	}
	// Some are taken. All rows are locked now, by this transaction, and cannot change.
	seen, err := s.keyStates(ctx, tx, keys)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if holders[k], err = s.settleKey(ctx, tx, k, holders[k], seen[k]); err != nil {
			return err
		}
	}
	return nil
}

// insertKeys takes the keys that are free, locks the rows of all, and reports whether it met any that are taken.
func (s *Store) insertKeys(ctx context.Context, tx querier, f facts, keys []dedupKey, holders map[dedupKey]waybill.ID) (met bool, err error) {
	first := provenBytes
	if !f.proves {
		first = "?"
	}
	query := s.sql.takeKeys + "(" + first + ", ?, ?)" + strings.Repeat(", (?, ?, ?)", len(keys)-1) + s.sql.keyTaken
	args := make([]any, 0, 3*len(keys))
	for _, k := range keys {
		id := holders[k]
		args = append(append(args, id[:]), k.bytes()...)
	}
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	mark, err := res.LastInsertId()
	return mark != 0, err
}

// keyState is a key's row as the transaction sees it without a lock.
type keyState struct {
	holder  waybill.ID
	pending bool
}

func (s *Store) keyStates(ctx context.Context, tx querier, keys []dedupKey) (map[dedupKey]keyState, error) {
	args := make([]any, 0, 2*len(keys))
	for _, k := range keys {
		args = append(args, k.bytes()...)
	}
	where := strings.Repeat(" OR d.tenant_id = ? AND d.dedup_key = ?", len(keys))[len(" OR "):]
	seen := make(map[dedupKey]keyState, len(keys))
	var tenant, key []byte
	var id scanID
	var pending bool
	err := each(ctx, tx, s.sql.keyStates+where, args, func() {
		seen[dedupKey{string(tenant), string(key)}] = keyState{waybill.ID(id), pending}
	}, &tenant, &key, &id, &pending)
	return seen, err
}

// settleKey returns who has a key whose row is locked. If it is an event that the transaction sees to be not pending, the row was left
// behind, and id takes it over. An event that the transaction does not see at all has come since.
func (s *Store) settleKey(ctx context.Context, tx querier, k dedupKey, id waybill.ID, seen keyState) (waybill.ID, error) {
	var holder scanID
	if err := each(ctx, tx, s.sql.holder, k.bytes(), nil, &holder); err != nil {
		return id, err
	}
	if waybill.ID(holder) == id || waybill.ID(holder) != seen.holder || seen.pending {
		return waybill.ID(holder), nil
	}
	_, err := tx.ExecContext(ctx, s.sql.takeOver, append([]any{id[:]}, k.bytes()...)...)
	return id, err
}
