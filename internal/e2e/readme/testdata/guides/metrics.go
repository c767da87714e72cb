package guide

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

func _(ctx context.Context, db *pgstore.Store, traces trace.TracerProvider, sink waybill.Sink, source broker.Source, inventory *inbox.Group[pgx.Tx]) {
	//block:1
	{
		//block:0
		//block:2
	}
}
