// Package inbox turns at-least-once delivery into one effect: a consumer group
// applies an event once, regardless of the transport and the number of
// deliveries.
//
// A [Group] keeps one record per event. [Group.Consume] runs a handler in a
// transaction together with that record: both commit or neither does.
// [Group.ConsumeBatch] does so for many events with one statement and one
// commit. [Group.ConsumeLeased] is for effects outside the database. All of
// them return nil if, and only if, the effect is committed, now or earlier.
// Every other outcome is an error, whose class ([waybill.Classify]) determines
// what the relay or the broker source does.
//
// A group with handlers is a sink for a relay. If the relay reads the same
// database, the outbox row, the effect and the record settle in one
// transaction. A [Bus] passes events to several groups.
package inbox
