// Package brokers tests the whole way over every broker, with real servers: that faults of a broker lose nothing, keep the order of every aggregate and
// spend no attempt; and that outbox, relay, broker and inbox together give every event its effect once.
//
//	make test-brokers
//	go test ./test/brokers -run 'TestFaults/redis' -long -seed 42
//
// A run prints its seed. The same seed gives the same schedule, though not the same moments.
package brokers
