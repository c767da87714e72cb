module github.com/waybillhq/waybill/store/mysqlstore

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/waybillhq/waybill v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/oklog/ulid/v2 v2.1.2 // indirect
)
