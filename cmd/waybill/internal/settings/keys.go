package settings

import (
	"slices"
	"strings"
	"time"
)

// Key is a setting: a row of the table.
type Key struct {
	// Name is the key in the file, with dots between group and key.
	Name string
	// Default is its value when nobody says anything.
	Default string
	// Unit says what its values are.
	Unit string
	// Help is one sentence.
	Help string
	// Daemon says that it belongs to the whole process: an entry of relays cannot have its own.
	Daemon bool

	slot func(*Settings) slot
}

// Flag returns the name of the flag, without dashes in front: store.url is --store, because that is what people type.
func (k Key) Flag() string { return flagOf(k.Name) }

// Variable returns the name of the environment variable.
func (k Key) Variable() string { return variableOf(k.Name) }

// Secret reports whether its value must not be seen. Such a setting can also be read from a file, whose name is in [Key.FileName].
func (k Key) Secret() bool {
	_, secret := k.slot(&Settings{}).(secretSlot)
	return secret
}

// FileName returns the key that names a file with the value, for secrets.
func (k Key) FileName() string { return k.Name + "-file" }

// Switch reports whether its values are true and false.
func (k Key) Switch() bool {
	_, is := k.slot(&Settings{}).(switchSlot)
	return is
}

// Choices returns the values of a setting that has only a few; nil for any other.
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

// relayVariable is the variable that says it about one relay.
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

func number(least int, field func(*Settings) *int) func(*Settings) slot {
	return func(s *Settings) slot { return numberSlot{p: field(s), least: least} }
}

func numberOrOff(field func(*Settings) *int) func(*Settings) slot {
	return func(s *Settings) slot { return numberSlot{p: field(s), least: 1, offers: true} }
}

func span(field func(*Settings) *time.Duration) func(*Settings) slot {
	return func(s *Settings) slot { return durationSlot{p: field(s)} }
}

func spanOrZero(field func(*Settings) *time.Duration) func(*Settings) slot {
	return func(s *Settings) slot { return durationSlot{p: field(s), zero: true} }
}

func spanOrOff(field func(*Settings) *time.Duration) func(*Settings) slot {
	return func(s *Settings) slot { return durationSlot{p: field(s), offers: true} }
}

// Table returns every setting, in the order in which people see them.
func Table() []Key {
	return slices.Concat(storeKeys(), sinkKeys(), relayKeys(), keepingKeys(), daemonKeys())
}

func storeKeys() []Key {
	return []Key{
		{
			Name: "enabled", Default: "true", Unit: "switch", Help: "Whether serve does anything for this relay at all",
			slot: toggle(func(s *Settings) *bool { return &s.Enabled }),
		},
		{
			Name: "store.url", Default: "sqlite:waybill.db", Unit: "URL", Help: "Where the tables are: postgres://, mysql:// or sqlite:FILE",
			slot: secret(func(s *Settings) *Secret { return &s.Store.URL }),
		},
		{
			Name: "store.prefix", Default: "waybill_", Unit: "name", Help: "What the tables' names start with",
			slot: text(func(s *Settings) *string { return &s.Store.Prefix }),
		},
		{
			Name: "store.schema", Default: "", Unit: "name", Help: "The schema (MySQL: database) of the tables; empty: the connection's own",
			slot: text(func(s *Settings) *string { return &s.Store.Schema }),
		},
		{
			Name: "store.lanes", Default: "0", Unit: "lanes", Help: "How many lanes new tables get; 0: 32, and 1 on SQLite. Tables that exist keep theirs",
			slot: number(0, func(s *Settings) *int { return &s.Store.Lanes }),
		},
		{
			Name: "store.migrate", Default: "true", Unit: "switch", Help: "Whether serve makes missing tables when it starts",
			slot: toggle(func(s *Settings) *bool { return &s.Store.Migrate }),
		},
		{
			Name: "store.connections", Default: "0", Unit: "connections", Help: "How many connections are open at most; 0: what the driver likes",
			slot: number(0, func(s *Settings) *int { return &s.Store.Connections }),
		},
		{
			Name: "store.connect-timeout", Default: "10s", Unit: "duration", Help: "How long the first connection may take",
			slot: span(func(s *Settings) *time.Duration { return &s.Store.ConnectTimeout }),
		},
		{
			Name: "store.notify-interval", Default: "10ms", Unit: "duration", Help: "How far apart commits wake relays of other processes (PostgreSQL); off: they poll",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Store.NotifyInterval }),
		},
		{
			Name: "store.listen", Default: "", Unit: "URL", Help: "Where relays listen for commits of other processes, if store.url leads through a pooler (PostgreSQL); empty: store.url",
			slot: secret(func(s *Settings) *Secret { return &s.Store.Listen }),
		},
		{
			Name: "store.newer-tables", Default: "false", Unit: "switch", Help: "Whether serve runs on tables with migrations that it does not know; see docs/operating.md",
			slot: toggle(func(s *Settings) *bool { return &s.Store.NewerTables }),
		},
		{
			Name: "store.busy-timeout", Default: "10s", Unit: "duration", Help: "How long a write waits for other writers (SQLite); off: not at all",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Store.BusyTimeout }),
		},
	}
}

func sinkKeys() []Key {
	return []Key{
		{
			Name: "sink.url", Default: "nats:embedded", Unit: "URL", Help: "Where events go; no default where store.url is set. nats:embedded is a JetStream server inside this process, log: prints them",
			slot: secret(func(s *Settings) *Secret { return &s.Sink.URL }),
		},
		{
			Name: "sink.topic", Default: "", Unit: "template", Help: "Topic of an event: text with {topic}, {type}, {aggregatetype} or {tenant} in it; empty: {topic}",
			slot: text(func(s *Settings) *string { return &s.Sink.Topic }),
		},
		{
			Name: "sink.source", Default: "waybill", Unit: "name", Help: "The CloudEvents source of every message",
			slot: text(func(s *Settings) *string { return &s.Sink.Source }),
		},
		{
			Name: "sink.secret", Default: "", Unit: "text", Help: "What signs the requests of webhooks: whsec_…, several with commas between them; unsigned: nothing does",
			slot: secret(func(s *Settings) *Secret { return &s.Sink.Secret }),
		},
		{
			Name: "sink.unsigned-attributes", Default: "false", Unit: "switch",
			Help: "Whether signed webhooks are sent in binary mode, for receivers that cannot read structured mode: the signature covers the payload, and not what event it is",
			slot: toggle(func(s *Settings) *bool { return &s.Sink.UnsignedAttributes }),
		},
		{
			Name: "sink.public-only", Default: "false", Unit: "switch",
			Help: "Whether webhooks are sent to public addresses only, without a proxy: an address of one's own network, or of this machine, is refused",
			slot: toggle(func(s *Settings) *bool { return &s.Sink.PublicOnly }),
		},
	}
}

func relayKeys() []Key {
	return []Key{
		{
			Name: "relay.enabled", Default: "true", Unit: "switch", Help: "Whether serve delivers events",
			slot: toggle(func(s *Settings) *bool { return &s.Relay.Enabled }),
		},
		{
			Name: "relay.name", Default: "waybill", Unit: "name", Help: "The relay's name; one outbox has one. An entry of relays has its own name as default",
			slot: text(func(s *Settings) *string { return &s.Relay.Name }),
		},
		{
			Name: "take-over", Default: "false", Unit: "switch",
			Help: "Whether serve may deliver the events of an outbox that remembers another sink or relay name; give it for one start",
			slot: toggle(func(s *Settings) *bool { return &s.TakeOver }),
		},
		{
			Name: "relay.workers", Default: "4", Unit: "deliveries", Help: "How many calls of the sink run at a time",
			slot: number(1, func(s *Settings) *int { return &s.Relay.Workers }),
		},
		{
			Name: "relay.batch", Default: "500", Unit: "events", Help: "How many events a read, a settlement or a call of the sink holds at most",
			slot: number(1, func(s *Settings) *int { return &s.Relay.Batch }),
		},
		{
			Name: "relay.hot-queue", Default: "1000", Unit: "events", Help: "How many events that this process committed may wait in memory; off: none",
			slot: numberOrOff(func(s *Settings) *int { return &s.Relay.HotQueue }),
		},
		{
			Name: "relay.cold-queue", Default: "1000", Unit: "events", Help: "How many events that were read from the tables may wait in memory",
			slot: number(1, func(s *Settings) *int { return &s.Relay.ColdQueue }),
		},
		{
			Name: "relay.attempts", Default: "10", Unit: "attempts", Help: "How often an event is tried before it is dead; off: for ever",
			slot: numberOrOff(func(s *Settings) *int { return &s.Relay.Attempts }),
		},
		{
			Name: "relay.backoff-base", Default: "200ms", Unit: "duration", Help: "Delay after the first failure; it doubles after each further one",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.BackoffBase }),
		},
		{
			Name: "relay.backoff-max", Default: "1m", Unit: "duration", Help: "The longest delay between two attempts",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.BackoffMax }),
		},
		{
			Name: "relay.backoff-series", Default: "", Unit: "durations", Help: "The delays instead, with commas between them; the last repeats",
			slot: func(s *Settings) slot { return seriesSlot{&s.Relay.BackoffSeries} },
		},
		{
			Name: "relay.unknown-grace", Default: "0s", Unit: "duration", Help: "How long an event waits that the sink has no place for, before it is dead",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Relay.UnknownGrace }),
		},
		{
			Name: "relay.on-dead", Default: "continue", Unit: "choice", Help: "What becomes of an aggregate one of whose events is dead: continue, or block until an operator decides",
			slot: choice(func(s *Settings) *string { return &s.Relay.OnDead }, "continue", "block"),
		},
		{
			Name: "relay.deliver-timeout", Default: "0s", Unit: "duration", Help: "How long one call of the sink may take; 0s: as long as the lease",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Relay.DeliverTimeout }),
		},
		{
			Name: "relay.lease", Default: "15s", Unit: "duration", Help: "How long a node's lanes stay its own after its last heartbeat",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.Lease }),
		},
		{
			Name: "relay.heartbeat", Default: "5s", Unit: "duration", Help: "How often the lease is renewed; at most a third of it",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.Heartbeat }),
		},
		{
			Name: "relay.poll", Default: "2s", Unit: "duration", Help: "How often the tables are read when nobody says that there is something to read",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.Poll }),
		},
		{
			Name: "relay.linger", Default: "2ms", Unit: "duration", Help: "How long a busy relay waits between two reads, and a settlement for more; off: not at all",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Relay.Linger }),
		},
		{
			Name: "relay.sweep", Default: "1s", Unit: "duration", Help: "How often the relay looks for events whose transactions committed late",
			slot: span(func(s *Settings) *time.Duration { return &s.Relay.Sweep }),
		},
		{
			Name: "relay.drain", Default: "5s", Unit: "duration", Help: "How long deliveries under way may take to finish when the relay stops; off: not at all",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Relay.Drain }),
		},
		{
			Name: "relay.keep-history", Default: "7d", Unit: "duration", Help: "How long delivered events are kept; off: not at all",
			slot: spanOrOff(func(s *Settings) *time.Duration { return &s.Relay.KeepHistory }),
		},
		{
			Name: "relay.keep-dead", Default: "0s", Unit: "duration", Help: "How long dead letters are kept; 0s: until an operator decides",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Relay.KeepDead }),
		},
	}
}

func keepingKeys() []Key {
	return []Key{
		{
			Name: "purge.enabled", Default: "true", Unit: "switch", Help: "Whether serve deletes events that need not be kept any more",
			slot: toggle(func(s *Settings) *bool { return &s.Purge.Enabled }),
		},
		{
			Name: "purge.batch", Default: "500", Unit: "rows", Help: "How many rows are deleted at a time",
			slot: number(1, func(s *Settings) *int { return &s.Purge.Batch }),
		},
		{
			Name: "purge.interval", Default: "1h", Unit: "duration", Help: "How often they are",
			slot: span(func(s *Settings) *time.Duration { return &s.Purge.Interval }),
		},
		{
			Name: "cdc.enabled", Default: "false", Unit: "switch", Help: "Whether change data capture reads the outbox, instead of a relay; relay.enabled has to be false",
			slot: toggle(func(s *Settings) *bool { return &s.CDC.Enabled }),
		},
		{
			Name: "cdc.keep", Default: "7d", Unit: "duration", Help: "How long events that can be read are kept; longer than the reader may be behind",
			slot: span(func(s *Settings) *time.Duration { return &s.CDC.Keep }),
		},
		{
			Name: "cdc.interval", Default: "1s", Unit: "duration", Help: "How often delayed events that are due are made ready to be read",
			slot: span(func(s *Settings) *time.Duration { return &s.CDC.Interval }),
		},
		{
			Name: "inbox.enabled", Default: "true", Unit: "switch", Help: "Whether serve looks after the records of consumer groups",
			slot: toggle(func(s *Settings) *bool { return &s.Inbox.Enabled }),
		},
		{
			Name: "inbox.retention", Default: "0s", Unit: "duration", Help: "How long records of success are kept; 0s: for ever",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Inbox.Retention }),
		},
		{
			Name: "inbox.redelivery-window", Default: "0s", Unit: "duration", Help: "For how long an event may be delivered again; a retention must not be shorter",
			slot: spanOrZero(func(s *Settings) *time.Duration { return &s.Inbox.RedeliveryWindow }),
		},
		{
			Name: "inbox.purge-interval", Default: "10m", Unit: "duration", Help: "How often old records are deleted",
			slot: span(func(s *Settings) *time.Duration { return &s.Inbox.PurgeInterval }),
		},
		{
			Name: "inbox.purge-batch", Default: "5000", Unit: "rows", Help: "How many records are deleted at a time",
			slot: number(1, func(s *Settings) *int { return &s.Inbox.PurgeBatch }),
		},
		{
			Name: "inbox.retry", Default: "false", Unit: "switch", Help: "Whether events that a group kept when they failed go to the sink again when they are due",
			slot: toggle(func(s *Settings) *bool { return &s.Inbox.Retry }),
		},
		{
			Name: "inbox.retry-interval", Default: "1s", Unit: "duration", Help: "How often serve looks for them",
			slot: span(func(s *Settings) *time.Duration { return &s.Inbox.RetryInterval }),
		},
		{
			Name: "keys.enabled", Default: "true", Unit: "switch", Help: "Whether serve deletes idempotency keys that have expired",
			slot: toggle(func(s *Settings) *bool { return &s.Keys.Enabled }),
		},
		{
			Name: "keys.interval", Default: "10m", Unit: "duration", Help: "How often it does",
			slot: span(func(s *Settings) *time.Duration { return &s.Keys.Interval }),
		},
		{
			Name: "keys.batch", Default: "500", Unit: "rows", Help: "How many keys are deleted at a time",
			slot: number(1, func(s *Settings) *int { return &s.Keys.Batch }),
		},
		{
			Name: "reconcile.enabled", Default: "true", Unit: "switch", Help: "Whether serve runs the jobs of the file",
			slot: toggle(func(s *Settings) *bool { return &s.Reconcile.Enabled }),
		},
		{
			Name: "metrics.enabled", Default: "true", Unit: "switch", Help: "Whether serve counts what it does",
			slot: toggle(func(s *Settings) *bool { return &s.Metrics.Enabled }),
		},
		{
			Name: "metrics.prefix", Default: "waybill", Unit: "name", Help: "What the names of the metrics start with",
			slot: text(func(s *Settings) *string { return &s.Metrics.Prefix }),
		},
		{
			Name: "metrics.interval", Default: "10s", Unit: "duration", Help: "How often the tables are counted",
			slot: span(func(s *Settings) *time.Duration { return &s.Metrics.Interval }),
		},
	}
}

func daemonKeys() []Key {
	return []Key{
		{
			Name: "http.enabled", Default: "true", Unit: "switch", Daemon: true, Help: "Whether serve answers over HTTP: health, metrics, operating",
			slot: toggle(func(s *Settings) *bool { return &s.HTTP.Enabled }),
		},
		{
			Name: "http.listen", Default: "127.0.0.1:9292", Unit: "address", Daemon: true, Help: "Where it listens; anything but loopback needs a token, a certificate and its key",
			slot: text(func(s *Settings) *string { return &s.HTTP.Listen }),
		},
		{
			Name: "http.token", Default: "", Unit: "text", Daemon: true, Help: "What a request must bring, at least 16 bytes; empty: on this machine anybody may look, and nothing can be changed",
			slot: secret(func(s *Settings) *Secret { return &s.HTTP.Token }),
		},
		{
			Name: "http.cert", Default: "", Unit: "file", Daemon: true, Help: "The certificate, in PEM",
			slot: text(func(s *Settings) *string { return &s.HTTP.Cert }),
		},
		{
			Name: "http.key", Default: "", Unit: "file", Daemon: true, Help: "The certificate's key, in PEM",
			slot: text(func(s *Settings) *string { return &s.HTTP.Key }),
		},
		{
			Name: "http.ready-age", Default: "30s", Unit: "duration", Daemon: true, Help: "How long a relay may get nowhere before /readyz says that it is not ready",
			slot: span(func(s *Settings) *time.Duration { return &s.HTTP.ReadyAge }),
		},
		{
			Name: "log.level", Default: "info", Unit: "choice", Daemon: true, Help: "What serve logs: debug, info, warn or error",
			slot: choice(func(s *Settings) *string { return &s.Log.Level }, "debug", "info", "warn", "error"),
		},
		{
			Name: "log.format", Default: "text", Unit: "choice", Daemon: true, Help: "How it is written: text or json",
			slot: choice(func(s *Settings) *string { return &s.Log.Format }, "text", "json"),
		},
	}
}
