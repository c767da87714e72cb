// Package settings defines every setting of the program in one table: name,
// default, unit and help. Flags, environment variables, the keys of the file,
// the output of waybill config and the table in docs/cli.md are derived from
// that table. The settings of destinations are in a table of their own, and
// only in the file.
//
// A flag overrides the environment, the environment overrides the file, and the
// file overrides the default. Within one source, a value for a named relay
// overrides the value for all relays.
package settings

import "time"

// Settings are the values for one relay and for the commands that operate on
// it. Every field is in the table; docs/cli.md describes each.
type Settings struct {
	// Name is the name of the relay's entry in the file; empty without an
	// entry.
	Name    string
	Enabled bool
	// TakeOver permits an outbox that records another sink.
	TakeOver bool
	// Actor is the name of who makes the changes of commands.
	Actor string

	Store Store
	Sink  Sink
	// Destinations are the receivers of the events, in the order of the file.
	// If there are any, Sink has no URL.
	Destinations []Destination

	Relay     Relay
	Purge     Purge
	CDC       CDC
	Inbox     Inbox
	Keys      Keys
	Reconcile Reconcile
	HTTP      HTTP
	Log       Log
	Metrics   Metrics

	values []Value
}

// Store describes the database with the tables.
type Store struct {
	URL            Secret
	Prefix, Schema string
	Lanes          int
	Migrate        bool
	Connections    int
	ConnectTimeout time.Duration
	NotifyInterval time.Duration
	BusyTimeout    time.Duration
	ListenURL      Secret
	NewerTables    bool
	OneNode        bool
}

// Sink describes the destination of events.
type Sink struct {
	URL                Secret
	Topic, EventSource string
	Secret             Secret
	// UnsignedAttributes sends signed webhooks in binary mode.
	UnsignedAttributes bool
	// PublicOnly connects to webhooks at public addresses only.
	PublicOnly bool
}

// Relay holds the settings of delivery; see
// [github.com/waybillhq/waybill/relay.Config].
type Relay struct {
	Enabled                             bool
	Name                                string
	Workers, BatchSize                  int
	HotQueue, ColdQueue, MaxBytes       int
	MaxAttempts                         int
	BackoffBase, BackoffMax             time.Duration
	BackoffSeries                       []time.Duration
	UnknownGrace, DeliverTimeout        time.Duration
	OnDead                              string
	Lease, Heartbeat, PollInterval      time.Duration
	Linger, SweepInterval, DrainTimeout time.Duration
	HistoryRetention, DeadRetention     time.Duration
}

// Purge holds the settings of the deletion of old events.
type Purge struct {
	Enabled   bool
	BatchSize int
	Interval  time.Duration
}

// CDC holds the settings of an outbox that change data capture reads; see
// [github.com/waybillhq/waybill/admin.Capture].
type CDC struct {
	Enabled             bool
	Retention, Interval time.Duration
}

// Inbox holds the settings of the maintenance of inbox records.
type Inbox struct {
	Enabled                     bool
	Retention, RedeliveryWindow time.Duration
	PurgeInterval               time.Duration
	PurgeBatchSize              int
	Retry                       bool
	RetryInterval               time.Duration
}

// Keys holds the settings of the deletion of expired idempotency keys.
type Keys struct {
	Enabled        bool
	PurgeInterval  time.Duration
	PurgeBatchSize int
}

// Reconcile holds the switch for the jobs of the file.
type Reconcile struct {
	Enabled bool
}

// HTTP holds the settings of the daemon's HTTP API.
type HTTP struct {
	Enabled   bool
	Listen    string
	Token     Secret
	Cert, Key string
	// Dashboard serves the dashboard beside the API.
	Dashboard bool
	// ActorHeader is the header with the name of the user of a request.
	ActorHeader string
	// ReadyAge is the time without progress after which a relay is not ready.
	ReadyAge time.Duration
}

// Log holds the settings of the daemon's log.
type Log struct {
	Level, Format string
}

// Metrics holds the settings of the daemon's metrics.
type Metrics struct {
	Enabled  bool
	Prefix   string
	Interval time.Duration
}

// Value is an effective setting.
type Value struct {
	Key Key
	// Text is the value as it may be shown.
	Text string
	// Source is the origin of the value: "default", a flag, a variable, or a
	// file and line.
	Source string
}

// Values returns every setting, in the order of the table.
func (s *Settings) Values() []Value { return s.values }

// Secrets returns the values that must not be shown.
func (s *Settings) Secrets() []Secret {
	all := []Secret{s.Store.URL, s.Store.ListenURL, s.Sink.URL, s.Sink.Secret, s.HTTP.Token}
	for _, d := range s.Destinations {
		all = append(all, d.Sink.URL, d.Sink.Secret)
	}
	return all
}
