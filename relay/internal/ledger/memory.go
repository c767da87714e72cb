package ledger

import (
	"math"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// memory counts the events in memory and their size.
type memory struct {
	// waiting is the number of events from the tables that wait for their
	// delivery, alone or behind another event of their aggregate.
	waiting int
	// others is the number of those that were taken ahead of the crowd.
	others int
	// bytes is the size of all events that are not settled, except parked ones:
	// an unavailable destination must not stop the others.
	bytes int
	// rowSize is the approximate size of a row.
	rowSize int
}

// account updates the memory of an item after a change of its state.
func (g *Ledger) account(it *Item) {
	m := &g.memory
	waits := !it.hot && (it.state == waiting || it.state == queued)
	switch {
	case waits && !it.waits:
		m.wait(it, 1)
	case !waits && it.waits:
		m.wait(it, -1)
	}
	it.waits = waits
	size := 0
	switch it.state {
	case waiting, queued, inFlight, finished:
		size = it.size
	case parked:
	case settled, dropped:
		it.row.Event.Payload = nil // the row's page is in memory as long as any of its rows
	}
	m.bytes += size - it.counts
	it.counts = size
}

// wait adds to the number of waiting events, for an item.
func (m *memory) wait(it *Item, n int) {
	m.waiting += n
	if it.other {
		m.others += n
	}
}

// isOther notes that an item was taken ahead of the crowd.
func (m *memory) isOther(it *Item) {
	if !it.other && it.waits {
		m.others++
	}
	it.other = true
}

// sawRows notes the sizes of the rows that a read returned.
func (m *memory) sawRows(rows []store.Row) {
	if len(rows) == 0 {
		return
	}
	total := 0
	for i := range rows {
		total += driver.RowSize(&rows[i])
	}
	// Larger rows count at once, smaller ones in time.
	size := total / len(rows)
	m.rowSize = max(size, m.rowSize-(m.rowSize-size)/8)
}

// releaseRows releases the payloads of rows that were not taken: the page is in
// memory as long as any of its rows.
func (g *Ledger) releaseRows(rows []store.Row) {
	for i := range rows {
		row := &rows[i]
		if l := g.lanes.at(row.Lane); l != nil {
			if it := l.items[row.ID]; it != nil && it.row == row {
				continue
			}
		}
		row.Event.Payload = nil
	}
}

// queueRoom is the number of events from the tables that may be taken.
func (g *Ledger) queueRoom() int { return g.cfg.ColdQueue - g.memory.waiting }

// byteRoom is the number of bytes that a read may return.
func (g *Ledger) byteRoom() int {
	if g.cfg.MaxBytes <= 0 {
		return driver.MaxPageBytes
	}
	return min(g.cfg.MaxBytes-g.memory.bytes, driver.MaxPageBytes)
}

// pageRoom is the number of rows of each lane that a read may return; at least
// 1.
func (g *Ledger) pageRoom(lanes int) int {
	if g.memory.rowSize == 0 {
		return math.MaxInt
	}
	return max(g.byteRoom()/g.memory.rowSize/max(lanes, 1), 1)
}

// rowRoom is the number of rows that a read may return; at least 1.
func (g *Ledger) rowRoom() int { return max(min(g.queueRoom(), g.pageRoom(1)), 1) }

// isFull reports whether no further event may be taken.
func (g *Ledger) isFull() bool { return g.queueRoom() <= 0 || g.byteRoom() <= 0 }

// hasRoom reports whether there is room for a read that is worthwhile.
func (g *Ledger) hasRoom() bool {
	return g.queueRoom() >= min(g.cfg.BatchSize, max(g.cfg.ColdQueue/2, 1)) &&
		(g.cfg.MaxBytes <= 0 || g.byteRoom() >= min(driver.MaxPageBytes, g.cfg.MaxBytes/2))
}
