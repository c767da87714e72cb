module github.com/waybillhq/waybill/broker/watermillbridge

go 1.26.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.3
	github.com/waybillhq/waybill v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	github.com/pkg/errors v0.9.1 // indirect
)
