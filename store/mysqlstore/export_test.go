package mysqlstore

import (
	"context"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Internals for tests.
var (
	CheckVersion = checkVersion
	PacketBytes  = packetBytes
)

// ParseStatus returns the transactions in a status, and its answer: known,
// committing or unknown.
func ParseStatus(text string) (open []string, answer string) {
	open, is := parseStatus(text)
	return open, map[statusAnswer]string{statusKnown: "known", statusCommitting: "committing", statusUnknown: "unknown"}[is]
}

// PretendMySQL makes the store prove its transactions as on MySQL, which has no
// variable for that. MariaDB supports that way as well.
func (s *Store) PretendMySQL(ctx context.Context) error {
	f, err := s.backend.facts(ctx, s.backend.db)
	if err != nil {
		return err
	}
	f.proves = false
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	s.backend.known = &f
	return nil
}

// PretendWaiting makes the store accept events as on MySQL, whose statements
// cannot opt out of waiting.
func (s *Store) PretendWaiting(ctx context.Context) error {
	f, err := s.backend.facts(ctx, s.backend.db)
	if err != nil {
		return err
	}
	f.proves, f.noWait = false, false
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	s.backend.known = &f
	return nil
}

// Leftover returns the number of dedup keys to be freed.
func (s *Store) Leftover() int {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	return len(s.backend.leftover)
}

// Prepared returns the number of prepared statements.
func (s *Store) Prepared() int {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	return len(s.backend.inserts)
}

// ShrinkPackets sets the assumed packet size of the server.
func (s *Store) ShrinkPackets(ctx context.Context, bytes int64) error {
	f, err := s.backend.facts(ctx, s.backend.db)
	if err != nil {
		return err
	}
	f.packet = packetBytes(bytes)
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	s.backend.known = &f
	return nil
}

// Arguments returns the query arguments of an event, by column.
func Arguments(ev waybill.Event) (map[string]any, error) {
	b, err := encode([]waybill.Event{ev}, []driver.AppendResult{{ID: ev.ID}})
	if err != nil {
		return nil, err
	}
	args := make(map[string]any)
	for c, name := range columns {
		args[name] = b.values[c]
	}
	return args, nil
}

// SettlesByKey reports whether a settlement finds delivered events by key.
func SettlesByKey(s driver.Settlement) bool { return newWork(s).doneList()[0] != '[' }
