package relay

import (
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

const (
	// rollupInterval is the minimum interval between heartbeats that bring
	// counts: nodes that share an outbox send more heartbeats than that.
	rollupInterval = 5 * time.Second
	// rollupTypes is the maximum number of types that a node counts in a
	// minute; the others are counted together.
	rollupTypes = 20
	// rollupRows is the maximum number of rows that a heartbeat brings. The
	// rest waits for the next one.
	rollupRows = 500
	// rollupSeen is the maximum number of pairs of a destination and a type
	// that are found at once.
	rollupSeen = 1000
	// rollupKeep is the number of minutes for which counts wait for a heartbeat
	// that succeeds. It is far less than the age at which minutes are merged:
	// see [driver.Rollups].
	rollupKeep = 60
)

// counter counts the results of deliveries, by minute, destination and type,
// for [driver.Rollups]. A row is sent again, with higher counts, until its
// minute is over and a heartbeat has succeeded: a lost heartbeat loses nothing,
// and one whose answer was lost counts once.
type counter struct {
	// clock estimates the database's clock.
	clock func(now time.Time) time.Time
	// minutes are those with counts that the database may not have, the oldest
	// first. The last one is the current minute, which ends at until.
	minutes []*countedMinute
	until   time.Time
	// last is the row that was counted last, and key its key.
	last *countedRow
	key  countedKey
	// sending are the rows of the heartbeat under way.
	sending []*countedRow
	sentAt  time.Time
	flushed bool // the counts were sent before leaving

	seconds [60]countedSecond
}

// countedMinute is what was counted in a minute.
type countedMinute struct {
	number int64
	source waybill.ID
	// rows are the rows by the forms that they have in the tables, in the order
	// in which they were first counted, and types their types.
	rows  []*countedRow
	named map[countedKey]*countedRow
	types map[string]struct{}
	// seen are the rows by what events have, as far as there is room.
	seen map[countedKey]*countedRow
}

type countedKey struct{ destination, kind string }

type countedRow struct {
	countedKey
	driver.RollupCounts
	sent, stored driver.RollupCounts
}

// countedSecond are the counts of a second, by the clock of this process.
type countedSecond struct {
	second int64
	driver.RollupCounts
}

// delivered, failed and died count a result.
func (c *counter) delivered(destination, kind string, now time.Time) {
	row, second := c.rows(destination, kind, now)
	row.Delivered++
	second.Delivered++
}

func (c *counter) failed(destination, kind string, now time.Time) {
	row, second := c.rows(destination, kind, now)
	row.Failed++
	second.Failed++
}

func (c *counter) died(destination, kind string, now time.Time) {
	row, second := c.rows(destination, kind, now)
	row.Dead++
	second.Dead++
}

// rows returns what a result adds to. Most results have the destination and the
// type of the one before.
func (c *counter) rows(destination, kind string, now time.Time) (*driver.RollupCounts, *driver.RollupCounts) {
	if !now.Before(c.until) {
		c.turn(now)
	}
	if key := (countedKey{destination, kind}); c.last == nil || c.key != key {
		c.last, c.key = c.minutes[len(c.minutes)-1].row(key), key
	}
	second := &c.seconds[now.Unix()%int64(len(c.seconds))]
	if n := now.Unix(); second.second != n {
		*second = countedSecond{second: n}
	}
	return &c.last.RollupCounts, &second.RollupCounts
}

// turn begins the current minute. A clock that goes back begins a minute again,
// as another source.
func (c *counter) turn(now time.Time) {
	db := c.clock(now)
	number := driver.MinuteOf(db)
	c.until = now.Add(driver.TimeOfMinute(number + 1).Sub(db))
	if n := len(c.minutes); n > 0 && c.minutes[n-1].number == number {
		return
	}
	c.forget(number)
	c.last = nil
	c.minutes = append(c.minutes, &countedMinute{
		number: number, source: waybill.NewID(),
		named: make(map[countedKey]*countedRow), types: make(map[string]struct{}), seen: make(map[countedKey]*countedRow),
	})
}

// row returns the row of a destination and a type.
func (m *countedMinute) row(key countedKey) *countedRow {
	row := m.seen[key]
	if row != nil {
		return row
	}
	name := countedKey{key.destination, m.typeOf(key.kind)}
	if row = m.named[name]; row == nil {
		row = &countedRow{countedKey: name}
		m.named[name], m.rows = row, append(m.rows, row)
	}
	if len(m.seen) < rollupSeen {
		key.kind = strings.Clone(key.kind) // without the rest of its page
		m.seen[key] = row
	}
	return row
}

// typeOf returns the type under which a type is counted.
func (m *countedMinute) typeOf(kind string) string {
	kind = driver.RollupType(kind)
	if _, known := m.types[kind]; known {
		return kind
	}
	if len(m.types) == rollupTypes {
		return ""
	}
	m.types[kind] = struct{}{}
	return kind
}

// forget drops the minutes that the database has, and those that are too old to
// be sent.
func (c *counter) forget(current int64) {
	kept := c.minutes[:0]
	for i, m := range c.minutes {
		if m.number >= current-rollupKeep && (i == len(c.minutes)-1 || m.isUnsent()) {
			kept = append(kept, m)
		}
	}
	clear(c.minutes[len(kept):])
	c.minutes = kept
}

func (m *countedMinute) isUnsent() bool {
	for _, row := range m.rows {
		if row.RollupCounts != row.stored {
			return true
		}
	}
	return false
}

// isUnsent reports whether there are counts that the database may not have.
func (c *counter) isUnsent() bool {
	for _, m := range c.minutes {
		if m.isUnsent() {
			return true
		}
	}
	return false
}

// send returns what a heartbeat brings: the counts that the database may not
// have. Unless it must, it returns none if an earlier heartbeat has just
// brought counts.
func (c *counter) send(now time.Time, must bool) string {
	c.sending = c.sending[:0]
	if len(c.minutes) == 0 || !must && now.Before(c.sentAt.Add(rollupInterval)) {
		return ""
	}
	if !now.Before(c.until) {
		c.turn(now)
	}
	c.forget(c.minutes[len(c.minutes)-1].number)
	var rows []driver.RollupRow
	for _, m := range c.minutes {
		for _, row := range m.rows {
			if row.RollupCounts == row.stored || len(rows) == rollupRows {
				continue
			}
			row.sent = row.RollupCounts
			c.sending = append(c.sending, row)
			rows = append(rows, driver.RollupRow{
				Minute: m.number, Source: m.source, Destination: row.destination, Type: row.kind, RollupCounts: row.sent,
			})
		}
	}
	c.sentAt = now
	return driver.EncodeRollup(rows)
}

// stored notes that the database has what the heartbeat brought.
func (c *counter) stored() {
	for _, row := range c.sending {
		row.stored = row.sent
	}
	c.sending = c.sending[:0]
}

// lastMinute returns the counts of the last sixty seconds.
func (c *counter) lastMinute(now time.Time) driver.RollupCounts {
	var sum driver.RollupCounts
	for i := range c.seconds {
		if s := &c.seconds[i]; s.second > now.Unix()-int64(len(c.seconds)) {
			sum.Add(s.RollupCounts)
		}
	}
	return sum
}

// mustFlush reports whether the counts have to be sent before this node leaves;
// it does once.
func (c *counter) mustFlush() bool {
	if c.flushed || !c.isUnsent() {
		return false
	}
	c.flushed = true
	return true
}
