package mysqlstore

import (
	"context"

	"github.com/waybillhq/waybill/internal/sqlstore"
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
	return sqlstore.Sink{
		Store: "mysqlstore",
		Read:  func() (string, error) { return s.RecordedSink(ctx) },
		First: func(sink string) error {
			_, err := s.db.ExecContext(ctx, names.Replace(firstSink), []byte(sink))
			return s.explain(err)
		},
		Replace: func(sink, before string) error {
			_, err := s.db.ExecContext(ctx, names.Replace(takeSink), []byte(sink), []byte(before), node.ID[:])
			return s.explain(err)
		},
	}.Claim(sink, takeOver)
}

// RecordedSink implements [driver.SinkGuard].
func (s *backend) RecordedSink(ctx context.Context) (string, error) {
	var sink []byte
	err := each(ctx, s.db, s.cfg.replacer().Replace(readSink), nil, nil, &sink)
	return string(sink), s.explain(err)
}
