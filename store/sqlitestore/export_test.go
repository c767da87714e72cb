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
		"fetch": q.fetch.text, "sweep": q.sweep.text, "due": q.due.text, "found": q.found.text, "deferRows": q.deferRows.text,
		"unready": q.unready.text, "keyHolder": q.keyHolder.text, "held": q.held.text, "freeKey": q.freeKey.text,
		"retryReady": q.retryReady.text, "retryDelayed": q.retryDelayed.text, "buryReady": q.buryReady.text, "buryDelayed": q.buryDelayed.text,
		"nextDue": q.nextDue.text, "holds": q.holds.text, "follow": q.follow.text, "urgent": q.urgent.text, "find": q.find.text,
		"list ready": q.list[store.Ready].text, "list dead": q.list[store.Dead].text,
		"purgeHistory": q.purgeHistory.text, "purgeDead": q.purgeDead.text,
		"succeed": q.succeed.text, "handled": q.handled.text, "markDead": q.markDead.text, "failHeld": q.failHeld.text, "giveBack": q.giveBack.text,
		"findRecord": q.findRecord.text, "dueRecords": q.dueRecords.text, "redriveDead": q.redriveDead.text, "purgeRecords": q.purgeRecords.text,
	}
	for i := range sizes {
		size := strconv.Itoa(sizes[i])
		list["load "+size], list["present "+size] = q.load[i].text, q.present[i].text
		list["keepReady "+size], list["keepDelayed "+size] = q.keepReady[i].text, q.keepDelayed[i].text
		list["dropReady "+size], list["dropDelayed "+size] = q.dropReady[i].text, q.dropDelayed[i].text
		list["deadKeys "+size], list["replay "+size], list["discard "+size] = q.deadKeys[i].text, q.replay[i].text, q.discard[i].text
		list["unblockDead "+size], list["unblockDelayed "+size] = q.unblockDead[i].text, q.unblockDelayed[i].text
		list["redriveKeys "+size] = q.redriveKeys[i].text
	}
	return list
}
