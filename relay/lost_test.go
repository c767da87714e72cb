package relay_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestReplayBehindALostAnswer: the answer to the settlement that makes an event
// a dead letter is lost. An operator replays the event before the settlement is
// repeated. The repeated settlement does not undo the replay.
func TestReplayBehindALostAnswer(t *testing.T) {
	for _, aggregate := range []string{"a", ""} {
		f := newFixture(t)
		ev := event(aggregate, 1)
		ev.ID = waybill.NewID()
		var lost atomic.Bool
		db := &scripted{Relay: f.db.Driver().Relay, settle: func(s driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
			out, err := next()
			if err == nil && len(s.Dead) > 0 && !lost.Swap(true) {
				if replayed, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{ev.ID}); err != nil || len(replayed.IDs) != 1 {
					t.Errorf("replay: %+v, %v", replayed, err)
				}
				return driver.Settled{}, errors.New("the answer was lost")
			}
			return out, err
		}}
		c := &collector{fail: func(d waybill.Delivery) error {
			if d.Replay == 0 {
				return waybill.Permanent(errors.New("no"))
			}
			return nil
		}}
		f.startOn(db, c.sink(), relay.Config{})
		f.write(ev)
		await(t, "the replayed event is delivered", func() bool { return f.stateOf(ev.ID) == store.Delivered })
	}
}
