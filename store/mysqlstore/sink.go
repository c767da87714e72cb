package mysqlstore

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

const (
	// readSink reads the recorded sink. Primary key of setting.
	readSink = `SELECT value FROM {setting} WHERE name = 'sink'`
	// firstSink records the sink if none is recorded.
	firstSink = `INSERT INTO {setting} (name, value) VALUES ('sink', ?) ON DUPLICATE KEY UPDATE value = value`
	// takeSink replaces the sink in the second argument with the one in the
	// first, unless a node other than the third argument is live.
	takeSink = `UPDATE {setting} SET value = ? WHERE name = 'sink' AND value = ?
AND NOT EXISTS (SELECT 1 FROM {node} AS n WHERE n.id <> ? AND n.expires_at > UTC_TIMESTAMP(6))`
)

// ClaimSink implements [driver.SinkGuard]. Each statement commits on its own. A
// node that joins between the check for live nodes and the commit of a
// take-over sees the new sink at its next heartbeat, and stops.
func (s *backend) ClaimSink(ctx context.Context, node store.Node, sink string, takeOver bool) (string, error) {
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
		return now, fmt.Errorf("mysqlstore: %w: the relay delivers to %q", store.ErrRelayLive, now)
	}
	return now, fmt.Errorf("mysqlstore: %w: %q", waybill.ErrOtherSink, now)
}

// RecordedSink implements [driver.SinkGuard].
func (s *backend) RecordedSink(ctx context.Context) (string, error) {
	var sink []byte
	err := each(ctx, s.db, s.cfg.replacer().Replace(readSink), nil, nil, &sink)
	return string(sink), s.explain(err)
}
