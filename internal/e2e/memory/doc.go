// Package memory tests memory stores over the databases of services, which have
// no table of the outbox.
package memory
