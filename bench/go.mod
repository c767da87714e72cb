module github.com/waybillhq/waybill/bench

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/jackc/pgx/v5 v5.11.0
	github.com/waybillhq/waybill v0.0.0
	github.com/waybillhq/waybill/store/mysqlstore v0.0.0
	github.com/waybillhq/waybill/store/pgstore v0.0.0
	github.com/waybillhq/waybill/store/sqlitestore v0.0.0
)

replace (
	github.com/waybillhq/waybill => ../
	github.com/waybillhq/waybill/store/mysqlstore => ../store/mysqlstore
	github.com/waybillhq/waybill/store/pgstore => ../store/pgstore
	github.com/waybillhq/waybill/store/sqlitestore => ../store/sqlitestore
)
