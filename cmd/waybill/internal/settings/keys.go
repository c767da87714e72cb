package settings

import (
	"slices"
	"strings"
	"time"
)

// Key is a setting: a row of the table.
type Key struct {
	// Name is the key in the file, with a dot between group and key.
	Name string
	// Default is the value if no source sets the key.
	Default string
	// Unit is the kind of values: a duration, a URL, a number of rows.
	Unit string
	// Help is a noun phrase that is understood alone.
	Help string
	// Daemon marks a setting of the whole process, which an entry of relays
	// cannot override.
	Daemon bool
	// FileOnly marks a setting without a flag and a variable.
	FileOnly bool

	slot func(*Settings) slot
}

// Flag returns the name of the flag, without leading dashes; "" if there is
// none. The flag of store.url is --store, for brevity.
func (k Key) Flag() string {
	if k.FileOnly {
		return ""
	}
	return flagOf(k.Name)
}

// Variable returns the name of the environment variable; "" if there is none.
func (k Key) Variable() string {
	if k.FileOnly {
		return ""
	}
	return variableOf(k.Name)
}

// Secret reports whether the value must not be shown. A secret can also be read
// from the file that the key [Key.FileName] names.
func (k Key) Secret() bool {
	_, secret := k.slot(&Settings{}).(secretSlot)
	return secret
}

// FileName returns the key that names a file with the value, for secrets.
func (k Key) FileName() string { return k.Name + "-file" }

// Switch reports whether the values are true and false.
func (k Key) Switch() bool {
	_, is := k.slot(&Settings{}).(switchSlot)
	return is
}

// Choices returns the values of a setting that has a fixed list of them; nil
// for any other.
func (k Key) Choices() []string {
	switch s := k.slot(&Settings{}).(type) {
	case choiceSlot:
		return slices.Clone(s.among)
	case switchSlot:
		return []string{"true", "false"}
	}
	return nil
}

func flagOf(name string) string {
	return strings.ReplaceAll(strings.Replace(name, ".url", "", 1), ".", "-")
}

const variablePrefix = "WAYBILL_"

func variableOf(name string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flagOf(name), "-", "_"))
}

// relayVariable returns the name of the variable for a setting of one relay.
func relayVariable(relay, name string) string {
	middle := strings.ToUpper(strings.ReplaceAll(relay, "-", "_"))
	return variablePrefix + "RELAYS_" + middle + "_" + strings.TrimPrefix(variableOf(name), variablePrefix)
}

// The kinds of values.

func text(field func(*Settings) *string) func(*Settings) slot {
	return func(s *Settings) slot { return textSlot{field(s)} }
}

func secret(field func(*Settings) *Secret) func(*Settings) slot {
	return func(s *Settings) slot { return secretSlot{field(s)} }
}

func toggle(field func(*Settings) *bool) func(*Settings) slot {
	return func(s *Settings) slot { return switchSlot{field(s)} }
}

func choice(field func(*Settings) *string, among ...string) func(*Settings) slot {
	return func(s *Settings) slot { return choiceSlot{field(s), among} }
}

func number(minimum int, field func(*Settings) *int) func(*Settings) slot {
	return func(s *Settings) slot { return numberSlot{p: field(s), min: minimum} }
}

func numberOrOff(field func(*Settings) *int) func(*Settings) slot {
	return func(s *Settings) slot { return numberSlot{p: field(s), min: 1, allowOff: true} }
}

func span(field func(*Settings) *time.Duration) func(*Settings) slot {
	return func(s *Settings) slot { return durationSlot{p: field(s)} }
}

func spanOrZero(field func(*Settings) *time.Duration) func(*Settings) slot {
	return func(s *Settings) slot { return durationSlot{p: field(s), zero: true} }
}

func spanOrOff(field func(*Settings) *time.Duration) func(*Settings) slot {
	return func(s *Settings) slot { return durationSlot{p: field(s), allowOff: true} }
}

// Table returns every setting, in display order.
func Table() []Key {
	return slices.Concat(storeKeys(), sinkKeys(), relayKeys(), maintenanceKeys(), daemonKeys())
}

func storeKeys() []Key {
	return []Key{
		{
			Name: "enabled", Default: "true", Unit: "switch", Help: "Work of serve for this relay: delivery, purges, jobs and metrics",
			slot: toggle(func(s *Settings) *bool { return &s.Enabled }),
		},
		{
			Name: "store.url", Default: "sqlite:waybill.db", Unit: "URL", Help: "URL of the database with the tables: postgres://, mysql:// or sqlite:FILE",
			slot: secret(func(s *Settings) *Secret { return &s.Store.URL }),
		},
		{
			Name: "store.prefix", Default: "waybill_", Unit: "name", Help: "Prefix of the table names",
			slot: text(func(s *Settings) *string { return &s.Store.Prefix }),
		},
		{
			Name: "store.schema", Default: "", Unit: "name", Help: "Schema (MySQL: database) of the tables; empty: the connection's default",
			slot: text(func(s *Settings) *string { return &s.Store.Schema }),
		},
		{
			Name: "store.lanes", Default: "0", Unit: "lanes", Help: "Number of lanes in new tables; 0: 32, on SQLite 1. Existing tables keep their number",
			slot: number(0, func(s *Settings) *int { return &s.Store.Lanes }),
		},
		{
			Name: "store.migrate", Default: "true", Unit: "switch", Help: "Creation of missing tables when serve starts",
			slot: toggle(func(s *Settings) *bool { return &s.Store.Migrate }),
		},
		{
			Name: "store.connections", Default: "0", Unit: "connections", Help: "Maximum number of open database connections; 0: the driver's default",
			slot: number(0, func(s *Settings) *int { return &s.Store.Connections }),
		},
		{
			Name: "store.connect-timeout", Default: "10s", Unit: "duration", Help: "Time limit for the first connection to the database",
			slot: span(func(s *Settings) *time.Duration { return &s.Store.ConnectTimeout }),
		},
		{
			Name: "store.notify-interval", Default: "10ms", Unit: "duration", Help: "Minimum interval between notifications that wake relays in other processes (PostgreSQL); off: relays poll",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Store.NotifyInterval }),
		},
		{
			Name: "store.listen-url", Default: "", Unit: "URL", Help: "URL for LISTEN, if store.url leads through a pooler (PostgreSQL); empty: store.url",
			slot: secret(func(s *Settings) *Secret { return &s.Store.ListenURL }),
		},
		{
			Name: "store.newer-tables", Default: "false", Unit: "switch", Help: "Permission for serve to run on tables with unknown migrations; see docs/operating.md",
			slot: toggle(func(s *Settings) *bool { return &s.Store.NewerTables }),
		},
		{
			Name: "store.one-node", Default: "false", Unit: "switch", Help: "All relays and writers use the same node of a cluster in which several accept writes (Galera; MySQL); see docs/clusters.md",
			slot: toggle(func(s *Settings) *bool { return &s.Store.OneNode }),
		},
		{
			Name: "store.busy-timeout", Default: "10s", Unit: "duration", Help: "Time that a write waits for other writers (SQLite); off: no wait",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Store.BusyTimeout }),
		},
	}
}

func sinkKeys() []Key { return sinkKeysOf(func(s *Settings) *Sink { return &s.Sink }) }

// sinkKeysOf returns the settings of a sink.
func sinkKeysOf(sink func(*Settings) *Sink) []Key {
	return []Key{
		{
			Name: "sink.url", Default: "nats:embedded", Unit: "URL", Help: "URL of the destination of events; no default if store.url is set. nats:embedded is a JetStream server in this process, log: prints events",
			slot: secret(func(s *Settings) *Secret { return &sink(s).URL }),
		},
		{
			Name: "sink.topic", Default: "", Unit: "template", Help: "Template of an event's topic, with the fields {topic}, {type}, {aggregatetype} and {tenant}; empty: {topic}",
			slot: text(func(s *Settings) *string { return &sink(s).Topic }),
		},
		{
			Name: "sink.event-source", Default: "waybill", Unit: "name", Help: "CloudEvents source of every message",
			slot: text(func(s *Settings) *string { return &sink(s).EventSource }),
		},
		{
			Name: "sink.secret", Default: "", Unit: "text", Help: "Signing secrets of webhook requests (whsec_…), separated by commas; unsigned: requests are not signed",
			slot: secret(func(s *Settings) *Secret { return &sink(s).Secret }),
		},
		{
			Name: "sink.unsigned-attributes", Default: "false", Unit: "switch",
			Help: "Binary mode for signed webhooks, for receivers without structured mode; the signature covers the payload, not the event's attributes",
			slot: toggle(func(s *Settings) *bool { return &sink(s).UnsignedAttributes }),
		},
		{
			Name: "sink.public-only", Default: "false", Unit: "switch",
			Help: "Restriction of webhooks to public addresses, without a proxy; loopback and private addresses are refused",
			slot: toggle(func(s *Settings) *bool { return &sink(s).PublicOnly }),
		},
	}
}

func relayKeys() []Key {
	return []Key{
		{
			Name: "relay.enabled", Default: "true", Unit: "switch", Help: "Delivery of events by serve",
			slot: toggle(func(s *Settings) *bool { return &s.Relay.Enabled }),
		},
		{
			Name: "relay.name", Default: "waybill", Unit: "name", Help: "Name of the relay; one outbox has one relay name. Default in an entry of relays: the name of the entry",
			slot: text(func(s *Settings) *string { return &s.Relay.Name }),
		},
		{
			Name: "take-over", Default: "false", Unit: "switch",
			Help: "Permission for serve to deliver the events of an outbox that records another sink or relay name; for one start only",
			slot: toggle(func(s *Settings) *bool { return &s.TakeOver }),
		},
		{
			Name: "actor", Default: "", Unit: "text", Help: "Name of who makes the changes of commands, for the audit; empty: the user of the operating system",
			slot: text(func(s *Settings) *string { return &s.Actor }),
		},
		{
			Name: "relay.workers", Default: "4", Unit: "deliveries", Help: "Number of concurrent calls of the sink",
			slot: number(1, func(s *Settings) *int { return &s.Relay.Workers }),
		},
		{
			Name: "relay.batch-size", Default: "500", Unit: "events", Help: "Maximum number of events in one read, settlement or call of the sink",
			slot: number(1, func(s *Settings) *int { return &s.Relay.BatchSize }),
		},
		{
			Name: "relay.hot-queue", Default: "1000", Unit: "events", Help: "Maximum number of events in memory that this process committed; off: none",
			slot: numberOrOff(func(s *Settings) *int { return &s.Relay.HotQueue }),
		},
		{
			Name: "relay.cold-queue", Default: "2000", Unit: "events", Help: "Maximum number of events that were read from the tables and wait in memory",
			slot: number(1, func(s *Settings) *int { return &s.Relay.ColdQueue }),
		},
		{
			Name: "relay.max-bytes", Default: "33554432", Unit: "bytes", Help: "Size of the events in memory at which the relay stops reading; off: no limit",
			slot: numberOrOff(func(s *Settings) *int { return &s.Relay.MaxBytes }),
		},
		{
			Name: "relay.max-attempts", Default: "10", Unit: "attempts", Help: "Maximum number of delivery attempts before an event is dead; off: no limit",
			slot: numberOrOff(func(s *Settings) *int { return &s.Relay.MaxAttempts }),
		},
		{
			Name: "relay.backoff-base", Default: "200ms", Unit: "duration", Help: "Delay after the first failed attempt; it doubles after each further failure",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.BackoffBase }),
		},
		{
			Name: "relay.backoff-max", Default: "1m", Unit: "duration", Help: "Maximum delay between two attempts",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.BackoffMax }),
		},
		{
			Name: "relay.backoff-series", Default: "", Unit: "durations", Help: "Delays between attempts, separated by commas, instead of doubling delays; the last one repeats",
			slot: func(s *Settings) slot { return seriesSlot{&s.Relay.BackoffSeries} },
		},
		{
			Name: "relay.unknown-grace", Default: "0s", Unit: "duration", Help: "Time that an event waits for a destination that does not exist before the event is dead",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Relay.UnknownGrace }),
		},
		{
			Name: "relay.on-dead", Default: "continue", Unit: "choice", Help: "Handling of an aggregate after one of its events is dead: continue, or block until an operator decides",
			slot: choice(func(s *Settings) *string { return &s.Relay.OnDead }, "continue", "block"),
		},
		{
			Name: "relay.deliver-timeout", Default: "0s", Unit: "duration", Help: "Time limit for one call of the sink; 0s: the lease",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Relay.DeliverTimeout }),
		},
		{
			Name: "relay.lease", Default: "15s", Unit: "duration", Help: "Time that a node owns its lanes after its last heartbeat",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.Lease }),
		},
		{
			Name: "relay.heartbeat", Default: "5s", Unit: "duration", Help: "Interval between renewals of the lease; at most a third of relay.lease",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.Heartbeat }),
		},
		{
			Name: "relay.poll-interval", Default: "2s", Unit: "duration", Help: "Interval between reads of the tables without a notification",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.PollInterval }),
		},
		{
			Name: "relay.linger", Default: "2ms", Unit: "duration", Help: "Delay of a busy relay between two reads, and of a settlement that waits for more results; off: no delay",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Relay.Linger }),
		},
		{
			Name: "relay.sweep-interval", Default: "1s", Unit: "duration", Help: "Interval between sweeps for events whose transactions committed late",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.SweepInterval }),
		},
		{
			Name: "relay.drain-timeout", Default: "5s", Unit: "duration", Help: "Time limit for deliveries in flight when the relay stops; off: no wait",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Relay.DrainTimeout }),
		},
		{
			Name: "relay.history-retention", Default: "7d", Unit: "duration", Help: "Retention of delivered events; off: none",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Relay.HistoryRetention }),
		},
		{
			Name: "relay.dead-retention", Default: "0s", Unit: "duration", Help: "Retention of dead letters; 0s: until an operator decides",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Relay.DeadRetention }),
		},
	}
}

func maintenanceKeys() []Key {
	return []Key{
		{
			Name: "purge.enabled", Default: "true", Unit: "switch", Help: "Deletion of delivered and dead events after their retention",
			slot: toggle(func(s *Settings) *bool { return &s.Purge.Enabled }),
		},
		{
			Name: "purge.batch-size", Default: "500", Unit: "rows", Help: "Number of events that a purge deletes at a time",
			slot: number(1, func(s *Settings) *int { return &s.Purge.BatchSize }),
		},
		{
			Name: "purge.interval", Default: "1h", Unit: "duration", Help: "Interval between purges of delivered and dead events",
			slot: span(func(s *Settings) *time.Duration { return &s.Purge.Interval }),
		},
		{
			Name: "cdc.enabled", Default: "false", Unit: "switch", Help: "Publication of events by change data capture instead of a relay; relay.enabled must be false",
			slot: toggle(func(s *Settings) *bool { return &s.CDC.Enabled }),
		},
		{
			Name: "cdc.retention", Default: "7d", Unit: "duration", Help: "Retention of events that change data capture reads; longer than the reader may lag behind",
			slot: span(func(s *Settings) *time.Duration { return &s.CDC.Retention }),
		},
		{
			Name: "cdc.interval", Default: "1s", Unit: "duration", Help: "Interval between runs that make due events ready for change data capture",
			slot: span(func(s *Settings) *time.Duration { return &s.CDC.Interval }),
		},
		{
			Name: "inbox.enabled", Default: "true", Unit: "switch", Help: "Maintenance of the inbox records of consumer groups",
			slot: toggle(func(s *Settings) *bool { return &s.Inbox.Enabled }),
		},
		{
			Name: "inbox.retention", Default: "0s", Unit: "duration", Help: "Retention of inbox records of processed events; 0s: forever",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Inbox.Retention }),
		},
		{
			Name: "inbox.redelivery-window", Default: "0s", Unit: "duration", Help: "Time during which an event may be delivered again; inbox.retention must not be shorter",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Inbox.RedeliveryWindow }),
		},
		{
			Name: "inbox.purge-interval", Default: "10m", Unit: "duration", Help: "Interval between purges of inbox records",
			slot: span(func(s *Settings) *time.Duration { return &s.Inbox.PurgeInterval }),
		},
		{
			Name: "inbox.purge-batch-size", Default: "5000", Unit: "rows", Help: "Number of inbox records that a purge deletes at a time",
			slot: number(1, func(s *Settings) *int { return &s.Inbox.PurgeBatchSize }),
		},
		{
			Name: "inbox.retry", Default: "false", Unit: "switch", Help: "Redelivery to the sink of failed events that a consumer group stored",
			slot: toggle(func(s *Settings) *bool { return &s.Inbox.Retry }),
		},
		{
			Name: "inbox.retry-interval", Default: "1s", Unit: "duration", Help: "Interval between searches for failed events that are due for redelivery",
			slot: span(func(s *Settings) *time.Duration { return &s.Inbox.RetryInterval }),
		},
		{
			Name: "keys.enabled", Default: "true", Unit: "switch", Help: "Deletion of expired idempotency keys",
			slot: toggle(func(s *Settings) *bool { return &s.Keys.Enabled }),
		},
		{
			Name: "keys.purge-interval", Default: "10m", Unit: "duration", Help: "Interval between purges of expired idempotency keys",
			slot: span(func(s *Settings) *time.Duration { return &s.Keys.PurgeInterval }),
		},
		{
			Name: "keys.purge-batch-size", Default: "500", Unit: "rows", Help: "Number of idempotency keys that a purge deletes at a time",
			slot: number(1, func(s *Settings) *int { return &s.Keys.PurgeBatchSize }),
		},
		{
			Name: "reconcile.enabled", Default: "true", Unit: "switch", Help: "Execution of the jobs in the file of settings",
			slot: toggle(func(s *Settings) *bool { return &s.Reconcile.Enabled }),
		},
		{
			Name: "metrics.enabled", Default: "true", Unit: "switch", Help: "Collection of metrics by serve",
			slot: toggle(func(s *Settings) *bool { return &s.Metrics.Enabled }),
		},
		{
			Name: "metrics.prefix", Default: "waybill", Unit: "name", Help: "Prefix of the metric names",
			slot: text(func(s *Settings) *string { return &s.Metrics.Prefix }),
		},
		{
			Name: "metrics.interval", Default: "10s", Unit: "duration", Help: "Interval between counts of the tables for the metrics",
			slot: span(func(s *Settings) *time.Duration { return &s.Metrics.Interval }),
		},
	}
}

func daemonKeys() []Key {
	return []Key{
		{
			Name: "http.enabled", Default: "true", Unit: "switch", Daemon: true, Help: "HTTP API of serve: health, metrics, administration",
			slot: toggle(func(s *Settings) *bool { return &s.HTTP.Enabled }),
		},
		{
			Name: "http.listen", Default: "127.0.0.1:9292", Unit: "address", Daemon: true, Help: "Address of the HTTP API; any address but loopback needs a token, a certificate and its key",
			slot: text(func(s *Settings) *string { return &s.HTTP.Listen }),
		},
		{
			Name: "http.token", Default: "", Unit: "text", Daemon: true, Help: "Bearer token of the HTTP API, at least 16 bytes; empty: read-only access from this machine",
			slot: secret(func(s *Settings) *Secret { return &s.HTTP.Token }),
		},
		{
			Name: "http.cert", Default: "", Unit: "file", Daemon: true, Help: "Certificate of the HTTP API, a file in PEM format",
			slot: text(func(s *Settings) *string { return &s.HTTP.Cert }),
		},
		{
			Name: "http.key", Default: "", Unit: "file", Daemon: true, Help: "Private key of the HTTP API's certificate, a file in PEM format",
			slot: text(func(s *Settings) *string { return &s.HTTP.Key }),
		},
		{
			Name: "http.dashboard", Default: "true", Unit: "switch", Daemon: true, Help: "Dashboard at /dashboard/ of the HTTP API; changes and payloads need the token",
			slot: toggle(func(s *Settings) *bool { return &s.HTTP.Dashboard }),
		},
		{
			Name: "http.actor-header", Default: "", Unit: "text", Daemon: true, Help: "Header with the name of the user, for the audit; set it only behind a proxy that authenticates users and sets the header; empty: none",
			slot: text(func(s *Settings) *string { return &s.HTTP.ActorHeader }),
		},
		{
			Name: "http.ready-age", Default: "30s", Unit: "duration", Daemon: true, Help: "Time without progress after which /readyz reports a relay as not ready",
			slot: span(func(s *Settings) *time.Duration { return &s.HTTP.ReadyAge }),
		},
		{
			Name: "log.level", Default: "info", Unit: "choice", Daemon: true, Help: "Minimum level of log messages: debug, info, warn or error",
			slot: choice(func(s *Settings) *string { return &s.Log.Level }, "debug", "info", "warn", "error"),
		},
		{
			Name: "log.format", Default: "text", Unit: "choice", Daemon: true, Help: "Format of log messages: text or json",
			slot: choice(func(s *Settings) *string { return &s.Log.Format }, "text", "json"),
		},
	}
}
