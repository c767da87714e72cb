// Package inbox makes at-least-once delivery one effect: a consumer group applies an event once, whatever carries it and however often.
//
// A [Group] keeps one record per event. [Group.Consume] runs a handler in a transaction together with that record: both commit or
// neither does. [Group.ConsumeBatch] does so for many events with one statement and one commit. [Group.ConsumeLeased] is for effects outside the
// database. All of them return nil if, and only if, the effect is committed, now or earlier; everything else is an error, and its class
// ([waybill.Classify]) tells whoever carries the events what to do.
//
// A group with handlers is a sink for a relay. Fed by a relay on the same database, the outbox row, the effect and the record settle in one
// transaction. A [Bus] hands events to several groups.
package inbox
