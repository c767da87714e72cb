package sqlitestore

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// sinkStatements are the statements about the recorded sink.
type sinkStatements struct {
	readSink, setSink, otherLive *statement
}

func (s *sinkStatements) fill(one func(string) *statement) {
	s.readSink = one(`SELECT value FROM {setting} WHERE name = 'sink'`)
	s.setSink = one(`INSERT INTO {setting} (name, value) VALUES ('sink', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1`)
	s.otherLive = one(`SELECT 1 FROM {node} WHERE id <> ?1 AND expires_at > ?2 LIMIT 1`)
}

// ClaimSink implements [driver.SinkGuard]. It takes no lock if the sink is
// already recorded.
func (s *backend) ClaimSink(ctx context.Context, n store.Node, sink string, takeOver bool) (string, error) {
	before, err := s.RecordedSink(ctx)
	if err != nil || before == sink {
		return before, err
	}
	err = s.within(ctx, func(ctx context.Context, t txTarget) error {
		before = ""
		rows, err := t.query(ctx, s.sql.readSink)
		if _, err := scanOne(rows, err, &before); err != nil {
			return err
		}
		if before == sink {
			return nil
		}
		if before != "" {
			if !takeOver {
				return fmt.Errorf("%w: %q", waybill.ErrOtherSink, before)
			}
			var live int
			rows, err := t.query(ctx, s.sql.otherLive, n.ID[:], micros(clock()))
			if found, err := scanOne(rows, err, &live); err != nil {
				return err
			} else if found {
				return fmt.Errorf("%w: the relay delivers to %q", store.ErrRelayLive, before)
			}
		}
		_, err = t.exec(ctx, s.sql.setSink, sink)
		return err
	})
	return before, err
}

// RecordedSink implements [driver.SinkGuard].
func (s *backend) RecordedSink(ctx context.Context) (string, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return "", err
	}
	var sink string
	rows, err := s.db.QueryContext(ctx, s.sql.readSink.text)
	_, err = scanOne(rows, err, &sink)
	return sink, s.explain(err)
}
