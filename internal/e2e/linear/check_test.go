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

// patience is how long the checker may search. It needs milliseconds: only a
// history with many lost answers takes longer.
const patience = time.Minute

// violation is a part of a history that the model does not allow.
type violation struct {
	part  string
	model porcupine.Model
	ops   []porcupine.Operation
}

// check returns the first violation of a history, or nil.
func check(t *testing.T, model porcupine.Model, log *history) *violation {
	t.Helper()
	for _, part := range slices.Sorted(maps.Keys(log.parts)) {
		ops := log.parts[part]
		switch porcupine.CheckOperationsTimeout(model, ops, patience) {
		case porcupine.Ok:
		case porcupine.Illegal:
			return &violation{part: part, model: model, ops: ops}
		case porcupine.Unknown:
			t.Fatalf("%s: the checker did not end: %d operations", part, len(ops))
		}
	}
	return nil
}

// want fails the test if a history has a violation: it prints the shortest
// beginning of the history that has it, and writes a picture.
func want(t *testing.T, seed uint64, model porcupine.Model, log *history) {
	t.Helper()
	v := check(t, model, log)
	if v == nil {
		return
	}
	short := v.shortest()
	path := filepath.Join(t.ArtifactDir(), "linear.html")
	_, info := porcupine.CheckOperationsVerbose(model, short, patience)
	if file, err := os.Create(path); err == nil {
		if err := porcupine.Visualize(model, info, file); err != nil {
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
		if porcupine.CheckOperationsTimeout(v.model, v.until(end), patience) == porcupine.Illegal {
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

// operation is an input of one of the models.
type operation interface {
	// forget returns the operation without its answer, and whether it may
	// change anything.
	forget() (lost any, changes bool)
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
		fmt.Fprintf(&b, "  %4d–%-4s client %d: %s\n", op.Call, end, op.ClientId%clients, v.model.DescribeOperation(op.Input, op.Output))
	}
	return b.String()
}
