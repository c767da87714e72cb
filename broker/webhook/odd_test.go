package webhook_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/webhook"
)

// A row that was inserted with SQL may hold anything. Content that could be
// mistaken for another header makes the event dead, in every mode, before a
// request is made; other events of the batch are posted.
func TestWhatCannotTravelIsDead(t *testing.T) {
	for name, cfg := range map[string]webhook.Config{
		"structured": {}, "binary": {Unsigned: true}, "binary and signed": {UnsignedAttributes: true},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var ids []string
			s := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, r.Header.Get(webhook.HeaderID))
				for name, values := range r.Header {
					if text := name + strings.Join(values, ""); strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
						t.Errorf("the header %q was sent", text)
					}
				}
			}))
			var batch []waybill.Delivery
			odds := drivertest.Odds()
			for _, o := range odds {
				odd := delivery("odd")
				o.Change(&odd)
				batch = append(batch, odd, delivery("a neighbor"))
			}
			want := map[string]bool{}
			for i, err := range sink(t, s.URL, cfg).Deliver(t.Context(), batch) {
				class, _ := waybill.Classify(err)
				want[batch[i].ID.String()] = class == waybill.ClassDone
				switch o := odds[i/2]; {
				case i%2 == 1:
					if err != nil {
						t.Errorf("a neighbor of %s: %v", o.Name, err)
					}
				case class != waybill.ClassPermanent && (class != waybill.ClassDone || !o.MayTravel):
					t.Errorf("%s: class %v: %v", o.Name, class, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				if !want[id] {
					t.Errorf("%s was posted, and is not delivered", id)
				}
				delete(want, id)
			}
			for id, delivered := range want {
				if delivered {
					t.Errorf("%s counts as delivered, and was not posted", id)
				}
			}
		})
	}
}
