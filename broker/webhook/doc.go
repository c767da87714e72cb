// Package webhook delivers events as signed HTTP requests, according to the
// Standard Webhooks specification, and receives them.
//
//	sink, err := webhook.NewSink("https://partner.example/hooks", webhook.Config{
//		Secrets: []string{secret},
//	})
//	…
//	r, err := relay.New(db, sink, relay.Config{})
//
// An event is one POST. The headers webhook-id, webhook-timestamp and
// webhook-signature follow the specification, so that a receiver can verify
// with any of its libraries that the request is genuine and new. The webhook-id
// is the event's id; a replay has another one ("id-r1"), so that a receiver
// that remembers ids does not drop it.
//
// The signature covers the id, the time and the body, and no other header.
// Therefore the body of a signed request is the whole event, as a CloudEvents
// message in structured mode: attributes, the event's own headers and the data
// in one JSON object. Unsigned requests, which must be enabled explicitly, are
// in binary mode: the payload is the body, and the attributes are headers
// ("ce-type", …).
//
// Endpoints of different customers need separate secrets ([Config.Target]), and
// should not reach the sender's own network ([Config.PublicOnly]).
//
// # Responses
//
// A 2xx status is a delivery. Redirects are not followed: a request that was
// signed for one address is not sent to another.
//
// | endpoint response | class | reason |
// |---|---|---|
// | 425 with Retry-After | defer | the receiver is not ready for the event |
// | 400, 410, 413, 414, 415, 422, 431 | permanent | the event is rejected permanently |
// | 429 | retry | too many requests; Retry-After sets the delay |
// | 502, 503, 504 | unavailable (endpoint) | a proxy answers for the endpoint, or the endpoint reports that it is unavailable |
// | any other status | retry | the endpoint answered and did not accept the event |
// | the address is not public (PublicOnly) | retry | the endpoint's name resolves to a network that PublicOnly excludes; nothing was sent |
// | connection lost, refused or silent | unavailable (endpoint) | the event was not rejected |
// | the certificate is not trusted | unavailable (endpoint) | the endpoint could not be verified; nothing was sent |
//
// Each combination of scheme and host is a destination: while one is
// unavailable, events for the others are delivered.
//
// # Receiving
//
// [Receiver] is an http.Handler that verifies the signature, passes the event
// to a consumer, such as an inbox group, and answers 204 when the consumer is
// done; for a group that is after the commit. The sink understands all other
// answers of the receiver. With a secret, the event consists only of signed
// content.
package webhook
