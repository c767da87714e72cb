package memstore

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// SetHeaders stores headers in a ready row as if their text had been read from
// a table: a memstore holds decoded headers.
func SetHeaders[T any](s *Store[T], id waybill.ID, text string) error {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	r := s.backend.rows[id]
	if r == nil || r.state != store.Ready {
		return fmt.Errorf("memstore: event %s is not ready", id)
	}
	r.Event.Headers, r.Err = driver.DecodeHeaders(text)
	return nil
}

// Pending returns copies of the rows that are ready or deferred.
func Pending[T any](s *Store[T]) []store.Row {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	var rows []store.Row
	for _, r := range s.backend.rows {
		if r.pending() {
			rows = append(rows, copyRow(r))
		}
	}
	return rows
}
