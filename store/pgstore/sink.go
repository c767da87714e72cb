package pgstore

import (
	"context"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

const (
	// readSink reads the recorded sink. Primary key of setting.
	readSink = `SELECT value FROM {setting} WHERE name = 'sink'`
	// firstSink records a sink if none is recorded.
	firstSink = `WITH ` + durable + `
INSERT INTO {setting} (name, value) SELECT 'sink', $1::text FROM durable ON CONFLICT (name) DO NOTHING`
	// takeSink replaces $2 with $1 unless a node other than $3 is live.
	takeSink = `WITH ` + durable + `
UPDATE {setting} SET value = $1::text FROM durable
WHERE name = 'sink' AND value = $2::text
  AND NOT EXISTS (SELECT FROM {node} WHERE id <> $3::uuid AND expires_at > clock_timestamp())`
)

// ClaimSink implements [driver.SinkGuard]. Each statement commits by itself. A
// node that joins between the check for live nodes and the commit of a takeover
// sees the new sink at its next heartbeat, and stops.
func (c *core) ClaimSink(ctx context.Context, node store.Node, sink string, takeOver bool) (string, error) {
	names := c.cfg.replacer()
	return sqlstore.Sink{
		Store: "pgstore",
		Read:  func() (string, error) { return c.RecordedSink(ctx) },
		First: func(sink string) error {
			return c.explain(c.db.exec(ctx, names.Replace(firstSink), sink))
		},
		Replace: func(sink, before string) error {
			return c.explain(c.db.exec(ctx, names.Replace(takeSink), sink, before, node.ID.UUID()))
		},
	}.Claim(sink, takeOver)
}

// RecordedSink implements [driver.SinkGuard].
func (c *core) RecordedSink(ctx context.Context) (string, error) {
	var sink string
	rows, err := c.db.query(ctx, c.cfg.replacer().Replace(readSink))
	if err := collect(rows, err, func() error { return nil }, &sink); err != nil {
		return "", c.explain(err)
	}
	return sink, nil
}
