module github.com/waybillhq/waybill/idempotency/echokey

go 1.26.0

require (
	github.com/labstack/echo/v4 v4.16.0
	github.com/waybillhq/waybill/idempotency/httpkey v0.0.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/labstack/gommon v0.5.0 // indirect
	github.com/mattn/go-colorable v0.1.15 // indirect
	github.com/mattn/go-isatty v0.0.22 // indirect
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/valyala/fasttemplate v1.2.2 // indirect
	github.com/waybillhq/waybill v0.0.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
