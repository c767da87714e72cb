module github.com/waybillhq/waybill

go 1.26.0

require github.com/oklog/ulid/v2 v2.1.2

require go.uber.org/goleak v1.3.0
