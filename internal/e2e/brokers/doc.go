// Package brokers tests the complete path over every broker, with real servers:
// broker faults lose no event, keep the order of every aggregate and spend no
// attempt; and outbox, relay, broker and inbox together apply every event once.
//
//	make test-brokers
//	go test ./internal/e2e/brokers -run 'TestFaults/redis' -long -seed 42
//
// A run prints its seed. The same seed gives the same schedule, though not the
// same timing.
package brokers
