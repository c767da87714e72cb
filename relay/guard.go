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
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/store"
)

// ownSink is the sink name of a relay whose Config has none.
const ownSink = "in-process"

// defaultName is the name of a relay whose Config has none. The waybill program
// uses another name.
const defaultName = "relay"

// maxFingerprint is the length of a text that every store can remember, in
// bytes.
const maxFingerprint = 255

// Fingerprint returns the text by which the outbox remembers a relay with this
// config: the sink and the relay's name. A text that is too long is cut and
// ends in a hash.
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

// byRelay returns the end of a fingerprint.
func (c Config) byRelay() string { return " (relay " + c.Name + ")" }

// heartbeat renews the node's lease, and checks that the outbox still belongs
// to this relay's sink. It runs on the member worker's goroutine.
//
// A relay that joins makes its node live before it claims the outbox, so that a
// take-over sees the node and waits for it to end. A relay that was paused
// while another relay took over the outbox finds the other sink at its next
// heartbeat, before it acquires a lane.
func (e *engine) heartbeat(ctx context.Context, node store.Node) (store.Membership, error) {
	guard, guarded := e.db.guard, e.db.guard != nil
	sink := e.cfg.Fingerprint()
	takeOver := e.cfg.TakeOver && !e.member.claimed
	if guarded && !e.member.claimed && !takeOver {
		// The relay reads the recorded sink first: joining would make a running
		// relay of the same name release half of its lanes. The heartbeat finds
		// a relay of another name, and changes nothing in that case.
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
		e.log.Warn("the relay took over the outbox", slog.String(logkey.From, before), slog.String(logkey.To, sink))
	}
	return view, nil
}
