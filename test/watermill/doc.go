// Package watermill runs Watermill's own suite of a Pub/Sub over the bridge: what it publishes goes
// through the outbox, a relay and a broker, and comes back through a source. It is a module of its
// own, so that what the suite requires is no requirement of other modules.
package watermill
