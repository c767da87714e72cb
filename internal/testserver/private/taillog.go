//go:build linux || darwin

package private

import "sync"

// tailLog keeps the end of a program's output.
type tailLog struct {
	mu   sync.Mutex
	text []byte
}

// Write implements [io.Writer].
func (l *tailLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const limit = 4096
	l.text = append(l.text, b...)
	l.text = l.text[max(0, len(l.text)-limit):]
	return len(b), nil
}

// String returns the kept output.
func (l *tailLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
