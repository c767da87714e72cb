module github.com/waybillhq/waybill/idempotency/httpkey

go 1.26.0

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/waybillhq/waybill v0.0.0
	go.uber.org/goleak v1.3.0
)

require github.com/oklog/ulid/v2 v2.1.2 // indirect
