// Package watermill runs Watermill's own Pub/Sub suite over the bridge:
// published messages go through the outbox, a relay and a broker, and come back
// through a source. It is a module of its own, so that the suite's requirements
// do not affect other modules.
package watermill
