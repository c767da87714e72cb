// Package driver is for authors of brokers. Users of Waybill need package
// broker and the package of their broker. This package may grow in minor
// versions, and so may the interfaces in it that a broker only calls; new
// abilities of a [Session] become optional interfaces, such as [Nakker] and
// [AckExtender].
//
// # Sinks
//
// A sink implements [waybill.Sink]. [PublishInOrder] calls the sink with the
// events that may be in flight together, a [broker.Codec] encodes them, and the
// broker's table of errors, [Failures], gives each error its class. A sink that
// keeps no order within a batch uses [PublishEach].
//
// # Sources
//
// A source implements [broker.Source]. Its Run calls [Receive] with a function
// that opens a [Session]: one connection, which passes messages to a [Receiver]
// and answers them. The receiver keeps the order of each aggregate, calls the
// consumer, and decides about every message.
//
// # Connections
//
// [TakeTLS] and [WarnInsecure] give every broker URL the same TLS parameters;
// [Redact] and [RedactError] keep secrets out of errors and logs.
//
// Package drivertest has the conformance suite. docs/writing-a-broker.md shows
// a complete broker.
package driver
