package natsbroker

import "time"

// FetchFor sets the duration of every fetch of a source.
func (s *Source) FetchFor(d time.Duration) { s.fetchFor = d }
