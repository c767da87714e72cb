package sqlitestore

import (
	"strconv"

	"github.com/waybillhq/waybill/store"
)

// Waiting returns the number of writers that wait for their turn.
func (s *Store) Waiting() int { return s.backend.turns.waiting() }

// CheckVersion checks SQLite's version.
func CheckVersion(version string) error { return checkVersion(version) }

// Statements returns the texts of the statements that read or change events,
// except those that count and those that scan because there is no index.
func (s *Store) Statements() map[string]string {
	q := s.backend.sql
	list := map[string]string{
		"found": q.found.text, "deferRows": q.deferRows.text,
		"unready": q.unready.text, "keyHolder": q.keyHolder.text, "held": q.held.text, "freeKey": q.freeKey.text,
		"destinationNumber": q.destinationNumber.text,
		"purgeHistory":      q.purgeHistory.text, "purgeDead": q.purgeDead.text, "recent": q.recent.text, "recentFloor": q.recentFloor.text,
		"succeed": q.succeed.text, "handled": q.handled.text, "markDead": q.markDead.text, "failHeld": q.failHeld.text, "giveBack": q.giveBack.text,
		"findRecord": q.findRecord.text, "dueRecords": q.dueRecords.text, "redriveDead": q.redriveDead.text, "purgeRecords": q.purgeRecords.text,
	}
	for i := range sizes {
		size := strconv.Itoa(sizes[i])
		list["keepReady "+size], list["keepDelayed "+size] = q.keepReady[i].text, q.keepDelayed[i].text
		list["divertReady "+size], list["divertDelayed "+size] = q.divertReady[i].text, q.divertDelayed[i].text
		list["redate "+size], list["redriveKeys "+size] = q.redate[i].text, q.redriveKeys[i].text
	}
	for i, remove := range q.removeRows {
		list["removeRows "+strconv.Itoa(i)] = remove.text
	}
	q.addTo(list)
	return list
}

// BacklogStatements is Statements for the backlog of a destination. It has the
// statistics as well, and not the refill, which sorts.
func (s *Store) BacklogStatements(number int) map[string]string {
	q := s.backend.Backlog(number).(*backlog).sql
	list := map[string]string{
		"stats": q.stats.text, "occupied": q.occupied.text, "purgeDead": q.purgeDead.text, "registered": q.registered.text,
		"countHistory": q.countHistory.text,
	}
	for i := range sizes {
		list["refill "+strconv.Itoa(sizes[i])] = q.refill[i].text
	}
	q.addTo(list)
	return list
}

// PageOfHistory returns the text of the statement that finds the events of a
// refill.
func (s *Store) PageOfHistory() string { return s.backend.Backlog(1).(*backlog).sql.pageOfHistory.text }

// addTo adds the statements of a queue.
func (s *queueStatements) addTo(list map[string]string) {
	for name, st := range map[string]*statement{
		"fetch": s.fetch, "sweep": s.sweep, "due": s.due, "nextDue": s.nextDue, "holds": s.holds, "follow": s.follow, "urgent": s.urgent, "find": s.find,
		"retryReady": s.retryReady, "retryDelayed": s.retryDelayed, "buryReady": s.buryReady, "buryDelayed": s.buryDelayed,
		"list ready": s.list[store.Ready], "list dead": s.list[store.Dead],
		"list dead by type": s.deadBy[byType].list, "count dead by type": s.deadBy[byType].count,
		"list dead by aggregate": s.deadBy[byAggregate].list, "count dead by aggregate": s.deadBy[byAggregate].count,
		"list dead by cause": s.deadBy[byCause].list, "count dead by cause": s.deadBy[byCause].count, "count dead since": s.deadBy[bySince].count,
	} {
		list[name] = st.text
	}
	for i := range sizes {
		size := " " + strconv.Itoa(sizes[i])
		for name, sized := range map[string][]*statement{
			"load": s.load, "present": s.present, "dropReady": s.dropReady, "dropDelayed": s.dropDelayed,
			"deadKeys": s.deadKeys, "replay": s.replay, "discard": s.discard, "unblockDead": s.unblockDead, "unblockDelayed": s.unblockDelayed,
		} {
			list[name+size] = sized[i].text
		}
	}
}
