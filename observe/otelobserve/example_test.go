package otelobserve_test

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/memstore"
)

// An outbox whose events are counted and carry the trace of the request that
// wrote them.
func Example() {
	ctx := context.Background()
	reader := sdkmetric.NewManualReader() // or an exporter
	o, err := otelobserve.New(otelobserve.Config{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		TracerProvider: sdktrace.NewTracerProvider(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	db, _ := memstore.New(memstore.Config{})
	box, _ := outbox.New(db, outbox.Config{Observe: o.Hooks()})
	err = box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error {
		return box.Write(ctx, tx, waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990}))
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "waybill.written" {
			fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value)
		}
	}
	// Output: waybill.written 1
}
