package natsbroker

import "time"

// FetchFor makes every fetch of a source last longer.
func (s *Source) FetchFor(d time.Duration) { s.fetchFor = d }
