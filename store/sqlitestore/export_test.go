package sqlitestore

import "strconv"

// Waiting returns how many writers wait for their turn.
func (s *Store) Waiting() int { return s.turns.waiting() }

// CheckVersion is the check of SQLite's version.
func CheckVersion(version string) error { return checkVersion(version) }

// Statements returns the texts of the statements that read or settle events.
func (s *Store) Statements() map[string]string {
	q := s.sql
	list := map[string]string{
		"fetch": q.fetch.text, "sweep": q.sweep.text, "due": q.due.text, "found": q.found.text, "putOff": q.putOff.text,
		"unready": q.unready.text, "keyHolder": q.keyHolder.text, "held": q.held.text, "freeKey": q.freeKey.text,
		"retryReady": q.retryReady.text, "retryDelayed": q.retryDelayed.text, "buryReady": q.buryReady.text, "buryDelayed": q.buryDelayed.text,
	}
	for i := range sizes {
		size := strconv.Itoa(sizes[i])
		list["load "+size], list["present "+size] = q.load[i].text, q.present[i].text
		list["keepReady "+size], list["keepDelayed "+size] = q.keepReady[i].text, q.keepDelayed[i].text
		list["dropReady "+size], list["dropDelayed "+size] = q.dropReady[i].text, q.dropDelayed[i].text
	}
	return list
}
