package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// ownSink is what the outbox remembers of a relay whose Config names no sink.
const ownSink = "in-process"

// defaultName is the name of a relay whose Config has none. That of the program waybill is another
// one.
const defaultName = "relay"

// maxFingerprint is how long a text is that every store can remember.
const maxFingerprint = 255

// Fingerprint returns what the outbox remembers of a relay with this config: where the events go,
// and by which relay. Of a text that is too long, the beginning and a hash.
func (c Config) Fingerprint() string {
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.SinkName == "" {
		c.SinkName = ownSink
	}
	text := c.SinkName + c.byRelay()
	if len(text) <= maxFingerprint {
		return text
	}
	hash := sha256.Sum256([]byte(text))
	mark := "… " + hex.EncodeToString(hash[:8])
	cut := maxFingerprint - len(mark)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}

// byRelay is how a fingerprint ends.
func (c Config) byRelay() string { return " (relay " + c.Name + ")" }

// heartbeat renews the node's lease, and checks that the outbox still belongs to this relay's sink.
// It runs on the member worker's goroutine.
//
// A relay that joins makes its node live before it claims: so a take-over sees it, and waits for
// its end. A relay that was paused, while another one took the outbox over, finds the other sink at
// its next heartbeat, before it acquires a lane.
func (e *engine) heartbeat(ctx context.Context, node store.Node) (store.Membership, error) {
	guard, guarded := e.db.(store.SinkGuard)
	sink := e.cfg.Fingerprint()
	takeOver := e.cfg.TakeOver && !e.member.claimed
	if guarded && !e.member.claimed && !takeOver {
		// A look first: joining would make a relay of the same name that runs give up half of its
		// lanes. One of another name is found by the heartbeat, which changes nothing then.
		recorded, err := guard.RecordedSink(ctx)
		if err != nil {
			return store.Membership{}, err
		}
		if recorded != sink && strings.HasSuffix(recorded, e.cfg.byRelay()) {
			return store.Membership{}, fmt.Errorf("%w: %q", waybill.ErrOtherSink, recorded)
		}
	}
	view, err := e.db.Heartbeat(ctx, node, e.cfg.Lease)
	if err != nil || !guarded {
		return view, err
	}
	before, err := guard.ClaimSink(ctx, node, sink, takeOver)
	if err != nil {
		if errors.Is(err, waybill.ErrOtherSink) || errors.Is(err, store.ErrRelayLive) {
			err = errors.Join(err, e.db.Leave(ctx, node))
		}
		return store.Membership{}, err
	}
	e.member.claimed = true
	if before != "" && before != sink {
		e.log.Warn("waybill: the relay has taken the outbox over", slog.String("from", before), slog.String("to", sink))
	}
	return view, nil
}
