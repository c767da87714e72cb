package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// sharedStamps holds the time at which each event was handled, by its number,
// in memory that a relay in another process shares.
type sharedStamps struct {
	path    string
	memory  []byte
	handled []atomic.Int64 // nanoseconds since 1970; 0: not yet
}

// createStamps creates the shared memory for n events.
func createStamps(n int) (*sharedStamps, error) {
	f, err := os.CreateTemp("", "waybill-bench-stamps-")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the mapping outlives it
	if err := f.Truncate(int64(n) * 8); err != nil {
		return nil, err
	}
	return mapStamps(f)
}

// openStamps opens the shared memory that another process has created.
func openStamps(path string) (*sharedStamps, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the mapping outlives it
	return mapStamps(f)
}

func mapStamps(f *os.File) (*sharedStamps, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	handled := unsafe.Slice((*atomic.Int64)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/8) //nolint:gosec // an aligned mapping
	return &sharedStamps{path: f.Name(), memory: memory, handled: handled}, nil
}

// handle is the handler of the relay.
func (s *sharedStamps) handle(payload []byte) {
	if n := numberOf(payload); n >= 0 && n < len(s.handled) {
		s.handled[n].CompareAndSwap(0, time.Now().UnixNano())
	}
}

// perSecond returns the rate at which the events were handled.
func (s *sharedStamps) perSecond() float64 {
	n, first, last := 0, int64(0), int64(0)
	for i := range s.handled {
		at := s.handled[i].Load()
		if at == 0 {
			continue
		}
		if n == 0 || at < first {
			first = at
		}
		n, last = n+1, max(last, at)
	}
	if last == first {
		return 0
	}
	return float64(n-1) / time.Duration(last-first).Seconds()
}

// close unmaps the memory; remove deletes its file.
func (s *sharedStamps) close()  { _ = syscall.Munmap(s.memory) }
func (s *sharedStamps) remove() { _ = os.Remove(s.path) }
