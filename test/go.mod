module github.com/waybillhq/waybill/test

go 1.26.0

require github.com/waybillhq/waybill v0.0.0

replace (
	github.com/waybillhq/waybill => ../
	github.com/waybillhq/waybill/store/pgstore => ../store/pgstore
	github.com/waybillhq/waybill/store/sqlitestore => ../store/sqlitestore
)
