package sqlitestore

func (s *statements) maintainStatements(one func(string) *statement, each func(text, item string) []*statement) {
	s.anyLive = one(`SELECT relay FROM {node} WHERE expires_at > ? LIMIT 1`)
	s.raiseEpoch = one(`UPDATE {lane} SET epoch = epoch + 1, dirty = dirty OR owner IS NOT NULL, owner = NULL, token = NULL`)
	s.setHistoryFrom = one(`INSERT INTO {setting} (name, value) VALUES ('history_from', ?1)
ON CONFLICT (name) DO UPDATE SET value = ?1`)
	// history_done_idx, dead_died_idx.
	s.purgeHistory = one(`DELETE FROM {history} WHERE rowid IN (SELECT rowid FROM {history} WHERE done_at < ? ORDER BY done_at LIMIT ?)`)
	s.purgeDead = one(`DELETE FROM {dead} WHERE rowid IN (SELECT rowid FROM {dead} WHERE died_at < ? ORDER BY died_at LIMIT ?)`)
	// Primary key of outbox, whose order is nearly the order of created_at. The
	// age of an event that was delayed counts from its due time.
	s.purgeReady = one(`DELETE FROM {outbox} WHERE seq IN (SELECT seq FROM {outbox} WHERE created_at < ?1 AND ifnull(available_at, 0) < ?1
ORDER BY seq LIMIT ?2) RETURNING id, tenant_id, dedup_key`)
	// delayed_due_idx (lane, due_at, seq). An event whose id is already among
	// the ready events stays delayed.
	const due = `SELECT id FROM {delayed} AS d WHERE lane = 0 AND due_at <= ?1 AND NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = d.id)
ORDER BY due_at, seq LIMIT ?2`
	s.makeReady = one(`INSERT INTO {outbox} (` + rowColumns + `, available_at)
SELECT ` + rowColumns + `, due_at FROM {delayed} WHERE id IN (` + due + `) ORDER BY due_at, seq RETURNING id`)
	// Primary key of delayed. Exactly the events that makeReady has moved are
	// in both tables.
	s.dropMoved = each(`DELETE FROM {delayed} WHERE id IN (LIST)`, "?")
	// Keys without a pending event, whose row was deleted by hand. An event and
	// its key commit together.
	s.freeOrphans = one(`DELETE FROM {dedup} WHERE NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = {dedup}.id)
AND NOT EXISTS (SELECT 1 FROM {delayed} AS l WHERE l.id = {dedup}.id)`)
}
