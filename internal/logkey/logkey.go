// Package logkey has the keys of all log attributes: snake_case, and one key
// per fact. A test in internal/repocheck rejects a key that is not in the list.
package logkey

// Where a line comes from.
const (
	// Component is the part of Waybill that logs the line.
	Component = "component"
	// Relay is the name of the relay.
	Relay = "relay"
	// Node is the id of one running relay.
	Node = "node"
	// Group is the name of a consumer group.
	Group = "group"
	// Job is the name of a reconciliation job.
	Job = "job"
	// Source is the name of a broker's source.
	Source = "source"
	// Broker is the address of a broker.
	Broker = "broker"
	// Hook is the name of a hook.
	Hook = "hook"
)

// The event.
const (
	EventID       = "event_id"
	EventType     = "event_type"
	AggregateType = "aggregate_type"
	AggregateID   = "aggregate_id"
	TenantID      = "tenant_id"
	DedupKey      = "dedup_key"
	CorrelationID = "correlation_id"
	Topic         = "topic"
	Attempt       = "attempt"
	// Class is the class of a result.
	Class = "class"
	// Delay is the time until the next attempt.
	Delay = "delay"
	// Latency is the time since the event was written.
	Latency = "latency"
)

// The request with an idempotency key.
const (
	Key = "key"
	Ref = "ref"
)

// What failed.
const (
	// Operation is the operation that failed, or the operation of a request.
	Operation = "operation"
	Error     = "error"
	Panic     = "panic"
	Stack     = "stack"
	// Reason is why a destination is paused or behind.
	Reason = "reason"
	// Since is when an outage began.
	Since = "since"
	// Duration is how long an outage has lasted.
	Duration = "duration"
	// Took is how long a call of a sink took.
	Took = "took"
	// Failures is the number of failures of an outage.
	Failures = "failures"
)

// Lanes and destinations.
const (
	Lane  = "lane"
	Lanes = "lanes"
	// Owned is the number of lanes that the node owns.
	Owned       = "owned"
	Epoch       = "epoch"
	Destination = "destination"
	// Destinations is a number of destinations; Names are the first of them.
	Destinations = "destinations"
	Names        = "names"
	// Rate is the number of events per second that a destination receives.
	Rate = "rate"
	// Calls is the number of calls of the sink that are in flight.
	Calls    = "calls"
	Dropped  = "dropped"
	Capacity = "capacity"
	From     = "from"
	To       = "to"
)

// Numbers of rows and messages.
const (
	Delivered = "delivered"
	Dead      = "dead"
	Written   = "written"
	Found     = "found"
	Sent      = "sent"
	Skipped   = "skipped"
	Failed    = "failed"
	Messages  = "messages"
	Missing   = "missing"
)

// The run of a reconciliation job.
const (
	DryRun = "dry_run"
	Notes  = "notes"
	// Lost means that another node runs the job.
	Lost = "lost"
)

// The daemon.
const (
	Relays     = "relays"
	Components = "components"
	Store      = "store"
	Sink       = "sink"
	Stream     = "stream"
	URL        = "url"
	Dir        = "dir"
	File       = "file"
	Version    = "version"
	Name       = "name"
	Address    = "address"
	RemoteAddr = "remote_addr"
	Route      = "route"
	// Changes means that the HTTP API accepts changes.
	Changes = "changes"
	// Given means that the request has a token.
	Given = "given"
	// Done means that the change succeeded.
	Done = "done"
)
