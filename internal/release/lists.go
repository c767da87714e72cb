package release

// Each module of go.work is in exactly one of these lists, by its folder. The
// tests of this package fail for a module that is in neither.

// released are the modules that a release tags.
var released = []string{
	".",
	"broker/kafkabroker",
	"broker/natsbroker",
	"broker/natsembed",
	"broker/pulsarbroker",
	"broker/rabbitbroker",
	"broker/redisbroker",
	"broker/watermillbridge",
	"cmd/waybill",
	"demo",
	"idempotency/echokey",
	"idempotency/ginkey",
	"idempotency/grpckey",
	"idempotency/httpkey",
	"observe/otelobserve",
	"store/mysqlstore",
	"store/pgstore",
	"store/sqlitestore",
}

// internal are the modules that only tests, benchmarks and readers use.
var internal = []string{
	"internal/e2e",
}
