package linear

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// patience is how long the checker may search in a partition. It nearly always
// needs milliseconds; an unusual number of lost answers takes longer.
const patience = 5 * time.Second

// model is a sequential specification of a part of a store. States are
// comparable.
type model struct {
	start any
	// step returns the states that can follow a state; none if the contract
	// does not allow the answer.
	step     func(state any, in operation, out any) []any
	describe func(in operation, out any) string
}

// operation is an input of a model.
type operation interface {
	// isLost reports whether the answer of the operation was lost.
	isLost() bool
	// forget returns the operation without its answer, and whether it may
	// change anything.
	forget() (lost operation, changes bool)
}

// endOfRun is an operation after the last answer of a run.
type endOfRun struct{}

// phase is a state during a run or after it.
type phase struct {
	state any
	over  bool
}

// checker returns the model for porcupine, which needs a moment for every
// operation. An operation whose answer was lost changes the state at its
// moment, or never happens; then its moment is after the run. To search other
// moments, at which it changes nothing, would double the work for each such
// operation.
func (m model) checker() porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{phase{state: m.start}} },
		Step: func(state, input, output any) []any {
			before := state.(phase)
			in, ok := input.(operation)
			if !ok { // the end of the run
				return []any{phase{state: before.state, over: true}}
			}
			if before.over {
				return []any{before}
			}
			var after []any
			for _, next := range m.step(before.state, in, output) {
				if !in.isLost() || next != before.state {
					after = append(after, phase{state: next})
				}
			}
			return after
		},
		DescribeOperation: func(input, output any) string {
			if in, ok := input.(operation); ok {
				return m.describe(in, output)
			}
			return "end of the run"
		},
		DescribeState: func(state any) string { return fmt.Sprint(state.(phase).state) },
	}).ToModel()
}

// ended adds the end of the run to operations.
func ended(ops []porcupine.Operation) []porcupine.Operation {
	end := int64(0)
	for _, op := range ops {
		if op.Return != never {
			end = max(end, op.Return)
		}
		end = max(end, op.Call)
	}
	return append(slices.Clone(ops), porcupine.Operation{ClientId: 0, Input: endOfRun{}, Call: end + 1, Return: end + 2})
}

// violation is a part of a history that the model does not allow.
type violation struct {
	part  string
	model model
	ops   []porcupine.Operation
}

// check returns the first violation of a history, or nil, and the number of
// partitions that it could not decide in time.
func check(m model, log *history) (v *violation, undecided int) {
	for _, part := range slices.Sorted(maps.Keys(log.parts)) {
		ops := log.parts[part]
		switch porcupine.CheckOperationsTimeout(m.checker(), ended(ops), patience) {
		case porcupine.Ok:
		case porcupine.Illegal:
			return &violation{part: part, model: m, ops: ops}, undecided
		case porcupine.Unknown:
			undecided++
		}
	}
	return nil, undecided
}

// want fails the test if a history has a violation: it prints the shortest
// beginning of the history that has it, and writes a picture.
func want(t *testing.T, seed uint64, m model, log *history) {
	t.Helper()
	v, undecided := check(m, log)
	if undecided > len(log.parts)/4 {
		t.Errorf("-linear.seed=%d: the checker did not decide %d of %d partitions", seed, undecided, len(log.parts))
	}
	if v == nil {
		return
	}
	short := v.shortest()
	path := filepath.Join(t.ArtifactDir(), "linear.html")
	_, info := porcupine.CheckOperationsVerbose(m.checker(), ended(short), patience)
	if file, err := os.Create(path); err == nil {
		if err := porcupine.Visualize(m.checker(), info, file); err != nil {
			t.Error(err)
		}
		_ = file.Close()
	}
	t.Errorf("-linear.seed=%d: %s is not linearizable; picture (with -artifacts): %s\n%s", seed, v.part, path, v.text(short))
}

// shortest returns the operations up to the first end of a call after which no
// order is possible.
func (v *violation) shortest() []porcupine.Operation {
	ends := make([]int64, 0, len(v.ops))
	for _, op := range v.ops {
		ends = append(ends, op.Return)
	}
	slices.Sort(ends)
	n, _ := slices.BinarySearchFunc(ends, true, func(end int64, _ bool) int {
		if porcupine.CheckOperationsTimeout(v.model.checker(), ended(v.until(end)), patience) == porcupine.Illegal {
			return 0
		}
		return -1
	})
	return v.until(ends[min(n, len(ends)-1)])
}

// until returns the operations that had begun at a time. The answers that came
// later count as lost; operations that change nothing are left out then.
func (v *violation) until(end int64) []porcupine.Operation {
	var ops []porcupine.Operation
	for _, op := range v.ops {
		switch {
		case op.Call > end:
			continue
		case op.Return > end && op.Return != never:
			in, changes := op.Input.(operation).forget()
			if !changes {
				continue
			}
			op.Input, op.Return = in, never
		}
		ops = append(ops, op)
	}
	return ops
}

// text lists operations in the order of their ends.
func (v *violation) text(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int {
		return cmp.Or(cmp.Compare(a.Return, b.Return), cmp.Compare(a.Call, b.Call))
	})
	var b strings.Builder
	for _, op := range ops {
		end := fmt.Sprint(op.Return)
		if op.Return == never {
			end = "…"
		}
		fmt.Fprintf(&b, "  %4d–%-4s client %d: %s\n", op.Call, end, op.ClientId%clients, v.model.describe(op.Input.(operation), op.Output))
	}
	return b.String()
}
