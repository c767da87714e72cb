package memstore

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// SetHeaders stores headers in a ready row as if their text had been read from
// a table: a memstore holds decoded headers.
func SetHeaders[T any](s *Store[T], id waybill.ID, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[id]
	if r == nil || r.state != store.Ready {
		return fmt.Errorf("memstore: event %s is not ready", id)
	}
	r.Event.Headers, r.Err = store.DecodeHeaders(text)
	return nil
}

// Pending returns copies of the rows that are ready or deferred.
func Pending[T any](s *Store[T]) []store.Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []store.Row
	for _, r := range s.rows {
		if r.pending() {
			rows = append(rows, copyRow(r))
		}
	}
	return rows
}
