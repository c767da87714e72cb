// Package settings is every tunable of the program: its name, default, unit and meaning, in one table. Flags, environment variables,
// the keys of the file, the output of waybill config and the table in docs/cli.md are all made of it.
//
// A flag wins over the environment, that over the file, and that over the default. Within each, what is said about one relay by name
// wins over what is said about all.
package settings

import "time"

// Settings is what one relay, and the commands that look after it, go by. Every field is in the table; docs/cli.md says what each means.
type Settings struct {
	// Name is that of the relay's entry in the file; empty without one.
	Name    string
	Enabled bool
	// TakeOver: the outbox may remember another sink.
	TakeOver bool

	Store     Store
	Sink      Sink
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

// Store is where the tables are.
type Store struct {
	URL            Secret
	Prefix, Schema string
	Lanes          int
	Migrate        bool
	Connections    int
	ConnectTimeout time.Duration
	NotifyInterval time.Duration
	BusyTimeout    time.Duration
	Listen         Secret
	NewerTables    bool
}

// Sink is where events go.
type Sink struct {
	URL           Secret
	Topic, Source string
	Secret        Secret
	// UnsignedAttributes sends signed webhooks in binary mode.
	UnsignedAttributes bool
	// PublicOnly connects to webhooks at public addresses only.
	PublicOnly bool
}

// Relay is how events are delivered; see [github.com/waybillhq/waybill/relay.Config].
type Relay struct {
	Enabled                                       bool
	Name                                          string
	Workers, Batch, HotQueue, ColdQueue, Attempts int
	BackoffBase, BackoffMax                       time.Duration
	BackoffSeries                                 []time.Duration
	UnknownGrace, DeliverTimeout                  time.Duration
	OnDead                                        string
	Lease, Heartbeat, Poll, Linger, Sweep, Drain  time.Duration
	KeepHistory, KeepDead                         time.Duration
}

// Purge is how what need not be kept is deleted.
type Purge struct {
	Enabled  bool
	Batch    int
	Interval time.Duration
}

// CDC is how an outbox is looked after that change data capture reads; see [github.com/waybillhq/waybill/operate.Capture].
type CDC struct {
	Enabled        bool
	Keep, Interval time.Duration
}

// Inbox is how the records of consumer groups are kept in order.
type Inbox struct {
	Enabled                     bool
	Retention, RedeliveryWindow time.Duration
	PurgeInterval               time.Duration
	PurgeBatch                  int
	Retry                       bool
	RetryInterval               time.Duration
}

// Keys is how expired idempotency keys are deleted.
type Keys struct {
	Enabled  bool
	Interval time.Duration
	Batch    int
}

// Reconcile is whether the jobs of the file run.
type Reconcile struct {
	Enabled bool
}

// HTTP is where the daemon listens.
type HTTP struct {
	Enabled   bool
	Listen    string
	Token     Secret
	Cert, Key string
	// ReadyAge is how long a relay may get nowhere.
	ReadyAge time.Duration
}

// Log is what the daemon says while it runs.
type Log struct {
	Level, Format string
}

// Metrics is how its counters are called.
type Metrics struct {
	Enabled  bool
	Prefix   string
	Interval time.Duration
}

// Value is a setting as it is in effect.
type Value struct {
	Key Key
	// Text is the value, as it may be seen.
	Text string
	// Source is where it came from: "default", a flag, a variable, or a file and line.
	Source string
}

// Values returns every setting, in the order of the table.
func (s *Settings) Values() []Value { return s.values }

// Secrets returns what must not be seen.
func (s *Settings) Secrets() []Secret {
	return []Secret{s.Store.URL, s.Store.Listen, s.Sink.URL, s.Sink.Secret, s.HTTP.Token}
}
