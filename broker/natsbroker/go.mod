module github.com/waybillhq/waybill/broker/natsbroker

go 1.26.0

require (
	github.com/nats-io/nats.go v1.55.0
	github.com/waybillhq/waybill v0.0.0
)

require (
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
