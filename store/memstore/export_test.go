package memstore

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// SetHeaders puts headers into a ready row as if their text had been read from a table: a memstore keeps them decoded.
func SetHeaders[T any](s *Store[T], id waybill.ID, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := s.outbox[id]
	if row == nil {
		return fmt.Errorf("memstore: event %s is not ready", id)
	}
	row.Event.Headers, row.Err = store.DecodeHeaders(text)
	return nil
}

// Pending returns copies of the rows that are ready or put off.
func Pending[T any](s *Store[T]) []store.Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []store.Row
	for _, row := range s.outbox {
		rows = append(rows, copyRow(row))
	}
	for _, row := range s.delayed {
		rows = append(rows, copyRow(row))
	}
	return rows
}
