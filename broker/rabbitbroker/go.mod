module github.com/waybillhq/waybill/broker/rabbitbroker

go 1.26.0

require (
	github.com/rabbitmq/amqp091-go v1.16.0
	github.com/waybillhq/waybill v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	github.com/stretchr/testify v1.10.0 // indirect
)
