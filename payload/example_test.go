package payload_test

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/payload"
)

// A key is replaced by making the new one current and keeping the old one until
// no event under it is left in the outbox, the history and the topics.
func ExampleEncrypt() {
	secret := func(b byte) []byte { return append(make([]byte, 31), b) } // use openssl rand 32
	old := payload.Key{ID: "2025", Secret: secret(1)}
	current := payload.Key{ID: "2026", Secret: secret(2)}

	before, _ := payload.Encrypt(old)
	after, _ := payload.Encrypt(current, old)
	writer, _ := payload.New(payload.Gzip(1024), before)
	consumer, _ := payload.New(payload.Gzip(1024), after)

	ctx := context.Background()
	ev := waybill.NewEvent("CardAdded", map[string]string{"number": "4111"})
	ev.ID = waybill.NewID() // outbox.Write does this
	sealed, _ := writer.Seal(ctx, ev)
	opened, err := consumer.Open(ctx, sealed)
	fmt.Println(sealed.Headers[payload.HeaderEncoding], string(opened.Payload), err)
	// Output: aes-256-gcm key=2025 {"number":"4111"} <nil>
}
