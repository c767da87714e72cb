// Package webhook delivers events as signed HTTP requests, after the Standard Webhooks specification, and receives them.
//
//	sink, err := webhook.NewSink("https://partner.example/hooks", webhook.Config{Secrets: []string{secret}})
//	…
//	r, err := relay.New(db, sink, relay.Config{})
//
// An event is one POST, and the headers webhook-id, webhook-timestamp and webhook-signature are
// those of the specification, so that a receiver can check with any of its libraries that the
// request is genuine and new. The id is the event's; a deliberate replay has one of its own
// ("id-r1"), so that a receiver that remembers ids does not drop it.
//
// The signature covers the id, the time and the body, and no other header. So the body of a signed
// request is the whole event, as a CloudEvents message in structured mode: attributes, the event's
// own headers and the data in one JSON object. Unsigned requests, which have to be asked for, are
// in binary mode: the payload is the body, and the attributes are headers ("ce-type", …).
//
// Endpoints that belong to several customers need a secret each ([Config.Target]), and should not
// lead into one's own network ([Config.PublicOnly]).
//
// # What the answers mean
//
// A status of 2xx is a delivery. Redirects are not followed: what was signed for one address is not sent to another.
//
// | what the endpoint answers | class | why |
// |---|---|---|
// | 425 with Retry-After | uncounted | it is not the event's turn yet |
// | 400, 410, 413, 414, 415, 422, 431 | dead | this event is refused, and will be |
// | 429 | counted | too many requests; Retry-After says when |
// | 502, 503, 504 | down (endpoint) | something in front of the endpoint speaks for it, or it says itself that it is away |
// | any other status | counted | it was reached, and did not take the event |
// | the address is not public (PublicOnly) | counted | the endpoint's name leads into a network that is closed to it; nothing was sent |
// | connection lost, refused or silent | down (endpoint) | nobody has refused the event |
// | the certificate is not trusted | down (endpoint) | it is not the endpoint that was meant; nothing was sent |
//
// Endpoints are told apart by scheme and host: while one is down, the others' events go on.
//
// # Receiving
//
// [Receiver] is an http.Handler in front of a consumer, such as an inbox group: it checks the
// signature, and answers 204 when the consumer is done, which for a group is after the commit. What
// it answers otherwise is what the sink understands. With a secret, the event consists of what is
// signed, and of nothing else.
package webhook
