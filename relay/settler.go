package relay

import (
	"context"
	"time"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store/driver"
)

type settleJob struct {
	queue      *queue
	settlement ledger.Settlement
	until      time.Time
}

type settleReply struct {
	settleJob
	settled driver.Settled
	took    time.Duration
	err     error
}

// settler runs settlements until the channel is closed.
func (q *queue) settler() {
	e := q.e
	for j := range q.settles {
		ctx, cancel := context.WithDeadline(context.Background(), j.until)
		began := time.Now()
		settled, err := q.rows.Settle(ctx, j.settlement.Settlement)
		cancel()
		took := time.Since(began)
		// The hook is called here, because the answer of the last settlement is
		// not handled when Run ends.
		if e.observe.Settled != nil {
			e.observe.Settled(observe.SettledInfo{Events: j.settlement.Events(), Took: took, Err: err})
		}
		if len(j.settlement.Dead) > 0 { // also after an error: it may have committed
			select {
			case e.buried <- struct{}{}:
			default:
			}
		}
		e.answers <- settleReply{settleJob: j, settled: settled, took: took, err: err}
	}
}
