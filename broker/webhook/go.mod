module github.com/waybillhq/waybill/broker/webhook

go 1.26.0

require (
	github.com/standard-webhooks/standard-webhooks/libraries v0.0.1
	github.com/waybillhq/waybill v0.0.0
	go.uber.org/goleak v1.3.0
)

require github.com/oklog/ulid/v2 v2.1.2 // indirect
