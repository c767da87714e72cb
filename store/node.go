package store

import (
	"time"

	"github.com/waybillhq/waybill"
)

// Node is one running relay.
type Node struct {
	// ID is new for every run.
	ID waybill.ID
	// Relay is the name of the relay; an outbox has one relay.
	Relay string
	// Report is the node's report about itself, in a form that package admin
	// reads; empty for a node without a report, and in the nodes that a
	// heartbeat returns.
	Report string
	// Rollup are the counts that the node sends with a heartbeat, in a form
	// that stores read; empty in the nodes that a store returns.
	Rollup string
	// Expires is the end of the node's lease; zero in the nodes that a
	// heartbeat returns.
	Expires time.Time
}
