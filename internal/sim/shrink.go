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
		smaller = fewerFaults(&c, attempt)
		smaller = fewerNodes(&c, attempt) || smaller
		smaller = fewerEvents(&c, attempt) || smaller
	}
	return c, f
}

// fewerFaults tries to leave out each kind of fault.
func fewerFaults(c *cut, attempt func(cut) bool) (smaller bool) {
	for _, kind := range allFaults() {
		if p := newPlan(*c); p.rate[kind] > 0 {
			next := *c
			next.off = append(slices.Clone(c.off), kind)
			smaller = attempt(next) || smaller
		}
	}
	return smaller
}

// fewerNodes tries to leave out one node after the other.
func fewerNodes(c *cut, attempt func(cut) bool) (smaller bool) {
	for p := newPlan(*c); p.nodes > 1; p.nodes-- {
		next := *c
		next.nodes = p.nodes - 1
		if !attempt(next) {
			return smaller
		}
		smaller = true
	}
	return smaller
}

// fewerEvents tries to halve the number of events.
func fewerEvents(c *cut, attempt func(cut) bool) (smaller bool) {
	for n := newPlan(*c).events / 2; n > 0; n /= 2 {
		next := *c
		next.events = n
		if !attempt(next) {
			return smaller
		}
		smaller = true
	}
	return smaller
}
