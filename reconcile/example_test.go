package reconcile_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store/memstore"
)

type created struct {
	EnrollmentID string `json:"enrollmentId"`
}

var enrollmentCreated = waybill.Define[created]("EnrollmentCreated", waybill.Spec{AggregateType: "enrollment"})

// A row without its event is found, and its event is published once.
func Example() {
	ctx := context.Background()
	db, _ := memstore.New(memstore.Config{})
	// the source of truth
	enrollments := map[string]time.Time{"e-1": time.Now().Add(-10 * time.Minute)}
	// the trace
	notified := map[string]bool{}

	rec, err := reconcile.New(db, []reconcile.Job{{
		Name: "enrollment-reconcile", Schedule: reconcile.Every(time.Minute), LookBack: time.Hour,
		Find: func(_ context.Context, w reconcile.Window, missing func(waybill.Event) error) error {
			for id, at := range enrollments {
				if notified[id] || !w.Contains(at) {
					continue
				}
				ev := enrollmentCreated.New(id, created{EnrollmentID: id})
				ev.DedupKey = waybill.DedupKey("enrollment", id)
				if err := missing(ev); err != nil {
					return err
				}
			}
			return nil
		},
	}}, reconcile.Config{})
	if err != nil {
		panic(err)
	}
	for range 2 { // rec.Run runs it on its schedule
		rep, err := rec.RunOnce(ctx, "enrollment-reconcile")
		fmt.Println(rep.Found, "found,", rep.Sent, "sent,", rep.Skipped, "skipped,", err)
	}
	// Output:
	// 1 found, 1 sent, 0 skipped, <nil>
	// 1 found, 0 sent, 1 skipped, <nil>
}
