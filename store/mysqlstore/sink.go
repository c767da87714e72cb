package mysqlstore

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

const (
	// readSink reads where the events go. Primary key of setting.
	readSink = `SELECT value FROM {setting} WHERE name = 'sink'`
	// firstSink records it, if nothing is recorded.
	firstSink = `INSERT INTO {setting} (name, value) VALUES ('sink', ?) ON DUPLICATE KEY UPDATE value = value`
	// takeSink replaces the second with the first unless another node than the third is live.
	takeSink = `UPDATE {setting} SET value = ? WHERE name = 'sink' AND value = ?
AND NOT EXISTS (SELECT 1 FROM {node} AS n WHERE n.id <> ? AND n.expires_at > UTC_TIMESTAMP(6))`
)

// ClaimSink implements [store.SinkGuard]. Each statement commits by itself. A node that joins
// between the check for live nodes and the commit of a take-over sees the new sink at its next
// heartbeat, and stops.
func (s *Store) ClaimSink(ctx context.Context, node store.Node, sink string, takeOver bool) (string, error) {
	names := s.cfg.replacer()
	before, err := s.RecordedSink(ctx)
	if err != nil || before == sink {
		return before, err
	}
	if before == "" {
		if _, err := s.db.ExecContext(ctx, names.Replace(firstSink), []byte(sink)); err != nil {
			return "", s.explain(err)
		}
	} else if takeOver {
		if _, err := s.db.ExecContext(ctx, names.Replace(takeSink), []byte(sink), []byte(before), node.ID[:]); err != nil {
			return before, s.explain(err)
		}
	}
	now, err := s.RecordedSink(ctx) // another relay may have been faster
	switch {
	case err != nil || now == sink:
		return before, err
	case takeOver && before != "":
		return now, fmt.Errorf("mysqlstore: %w: it delivers to %q", store.ErrRelayLive, now)
	}
	return now, fmt.Errorf("mysqlstore: %w: %q", waybill.ErrOtherSink, now)
}

// RecordedSink implements [store.SinkGuard].
func (s *Store) RecordedSink(ctx context.Context) (string, error) {
	var sink []byte
	err := each(ctx, s.db, s.cfg.replacer().Replace(readSink), nil, nil, &sink)
	return string(sink), s.explain(err)
}
