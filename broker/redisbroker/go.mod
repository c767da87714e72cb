module github.com/waybillhq/waybill/broker/redisbroker

go 1.26.0

require (
	github.com/redis/go-redis/v9 v9.23.0
	github.com/waybillhq/waybill v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
