package pgstore

import (
	"context"
	"database/sql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// Begin implements [driver.Beginner].
func (s *sqlBackend) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[*sql.Tx], error) {
	if _, err := s.laneCount(ctx, s.db); err != nil {
		return nil, err
	}
	sess, err := sqltx.Begin(ctx, s.sqldb, opts, sqltx.Dialect{
		Present:    s.stillThere,
		RolledBack: answeredNo,
	})
	if err != nil {
		return nil, err
	}
	return sess, nil
}

// stillThere returns the events that have a row visible to tx.
func (s *sqlBackend) stillThere(ctx context.Context, tx *sql.Tx, ids []waybill.ID) (map[waybill.ID]bool, error) {
	db := sqlDB{tx}
	there := make(map[waybill.ID]bool, len(ids))
	var id waybill.ID
	rows, err := db.query(ctx, s.sql.present, db.ids(ids))
	err = collect(rows, err, func() error { there[id] = true; return nil }, db.scanID(&id))
	return there, err
}

// Append implements [driver.Appender].
func (s *sqlBackend) Append(ctx context.Context, tx *sql.Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	return s.AppendSQL(ctx, tx, evs)
}

// AppendSQL implements [driver.SQLAppender].
func (s *sqlBackend) AppendSQL(ctx context.Context, tx driver.SQLTx, evs []waybill.Event) ([]driver.AppendResult, error) {
	db := sqlDB{tx}
	put := func(evs []waybill.Event, placed []driver.AppendResult, lanes int) error {
		for _, chunk := range chunks(evs) {
			here := placed[:len(chunk)]
			placed = placed[len(chunk):]
			query, args, err := s.insert(chunk, here, lanes)
			if err != nil {
				return err
			}
			var n int64
			rows, err := db.query(ctx, query, textArgs(args)...)
			err = collect(rows, err, func() error { s.answer(chunk, here, n); return nil }, &n)
			if err != nil {
				return err
			}
		}
		return nil
	}
	return s.append(ctx, db, evs, put)
}
