package guide

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/echokey"
	"github.com/waybillhq/waybill/idempotency/ginkey"
	"github.com/waybillhq/waybill/idempotency/grpckey"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

type (
	Order       struct{ Product, Total string }
	OrderPlaced struct{ ID string }
	Receipt     struct{}
	Charge      struct{}
	User        struct{ Tenant, ID string }
	Bank        interface {
		Transfer(ctx context.Context, amount int) (Receipt, error)
		Charge(ctx context.Context, total, key string) (Charge, error)
	}
)

var orderPlaced = waybill.Define[Order]("OrderPlaced", waybill.Spec{AggregateType: "order"})

func _(ctx context.Context, db *pgstore.Store, box *outbox.Outbox[pgx.Tx], tenant, key, id string, order Order) {
	{
		//block:0
	}
}

func _(
	ctx context.Context, keys *idempotency.Keys[pgx.Tx], req idempotency.Request, bank Bank, amount int, request Order,
	book func(context.Context, pgx.Tx, Order) (Order, error), confirm func(context.Context, pgx.Tx, Order, Charge) (Receipt, error),
) {
	{
		//block:1
	}
	{
		//block:2
	}
}

func _(keys *idempotency.Keys[pgx.Tx], mux *http.ServeMux, userOf func(context.Context) (User, error), sendMail http.Handler) {
	//block:3
}

func _(once *httpkey.Middleware[pgx.Tx], r *gin.Engine, e *echo.Echo) {
	//block:4
}

func _(
	keys *idempotency.Keys[pgx.Tx], tenantOf func(context.Context) (grpckey.Scope, error), authenticate grpc.UnaryServerInterceptor,
	shop struct{ Orders_Create_FullMethodName string },
) {
	//block:5
}
