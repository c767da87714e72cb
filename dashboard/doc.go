// Package dashboard shows an outbox in a browser: waiting events and the
// reasons, dead letters grouped by their cause, one event's journey,
// destinations, blocked aggregates, consumer groups, relays and idempotency
// keys.
//
// A [Dashboard] is an [net/http.Handler] for a service's own server. It is
// mounted under any path:
//
//	d, err := dashboard.New(dashboard.Config{Outbox: ops})
//	mux.Handle("/waybill/", http.StripPrefix("/waybill", d))
//
// The handler does not authenticate: the service decides who reaches it. It is
// read-only unless Config.Allow permits changes. Each query has a time limit
// and a row limit, and lists are read in pages.
//
// The pages are rendered on the server and need no JavaScript. A small script
// keeps the overview current.
package dashboard
