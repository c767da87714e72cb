package sim

import "slices"

// shrink returns the smallest cut that still fails by the same rule: fewer
// faults, fewer nodes, fewer events. try runs a cut; it returns nil if it does
// not fail. more reports whether there is time for another try.
func shrink(c cut, f *failure, try func(cut) *failure, more func() bool) (cut, *failure) {
	attempt := func(smaller cut) bool {
		for range 2 { // the order of goroutines is not under our control
			if !more() {
				return false
			}
			if g := try(smaller); g != nil && g.rule == f.rule {
				c, f = smaller, g
				return true
			}
		}
		return false
	}
	for smaller := true; smaller && more(); {
		smaller = false
		for _, kind := range allFaults() {
			if p := newPlan(c); p.rate[kind] > 0 {
				next := c
				next.off = append(slices.Clone(c.off), kind)
				smaller = attempt(next) || smaller
			}
		}
		for p := newPlan(c); p.nodes > 1; p.nodes-- {
			next := c
			next.nodes = p.nodes - 1
			if !attempt(next) {
				break
			}
			smaller = true
		}
		for p := newPlan(c); p.events > 1; {
			next := c
			next.events = p.events / 2
			if !attempt(next) {
				break
			}
			p.events, smaller = next.events, true
		}
	}
	return c, f
}
