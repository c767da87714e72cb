package ledger

import "slices"

// turns is a queue in which tenants take turns: one item each, in the order in
// which they came. Items of one tenant keep their order.
type turns struct {
	// lines are the tenants with items, and next is the one whose turn it is. A
	// line may be empty only if it is the only one.
	lines []*line
	next  int
	by    map[string]*line
	last  *line // of the item that was added last: often the next one's too
	spare []*line
	n     int // items, with dropped ones
}

// line are the items of a tenant.
type line struct {
	tenant string
	items  []*Item
	head   int
}

// maxSpare is the number of empty lines that are kept for reuse.
const maxSpare = 64

func (t *turns) push(it *Item) {
	tenant := it.row.Event.TenantID
	l := t.last
	if l == nil || l.tenant != tenant {
		l = t.line(tenant)
	}
	l.items = append(l.items, it)
	t.last = l
	t.n++
}

// line returns the line of a tenant, which may be new.
func (t *turns) line(tenant string) *line {
	if l := t.by[tenant]; l != nil {
		return l
	}
	if len(t.lines) == 1 && t.n == 0 {
		t.remove(0)
	}
	l := &line{}
	if n := len(t.spare); n > 0 {
		l, t.spare = t.spare[n-1], t.spare[:n-1]
	}
	l.tenant = tenant
	if t.by == nil {
		t.by = make(map[string]*line)
	}
	t.by[tenant] = l
	t.lines = append(t.lines, l)
	return l
}

// pop removes the next item, which may have been dropped; then it takes no
// turn. There is at least one item.
func (t *turns) pop() *Item {
	l := t.lines[t.next]
	it := l.items[l.head]
	l.items[l.head] = nil
	l.head++
	t.n--
	switch {
	case l.compact() && len(t.lines) > 1:
		t.remove(t.next)
	case it.state == queued:
		t.next++
	}
	if t.next >= len(t.lines) {
		t.next = 0
	}
	return it
}

// remove removes an empty line.
func (t *turns) remove(at int) {
	l := t.lines[at]
	t.lines = slices.Delete(t.lines, at, at+1)
	delete(t.by, l.tenant)
	if t.last == l {
		t.last = nil
	}
	l.tenant = ""
	if len(t.spare) < maxSpare {
		t.spare = append(t.spare, l)
	}
}

// compact frees the room of items that were popped, and reports whether there
// are no others.
func (l *line) compact() bool {
	if l.head == len(l.items) {
		l.items, l.head = l.items[:0], 0
	} else if l.head > 1024 && l.head > len(l.items)/2 {
		n := copy(l.items, l.items[l.head:])
		clear(l.items[n:])
		l.items, l.head = l.items[:n], 0
	}
	return len(l.items) == 0
}
