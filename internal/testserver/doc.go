// Package testserver gives tests the addresses of databases and brokers.
//
// A test that needs a real server asks for its data source name:
//
//	pool, err := pgxpool.New(ctx, testserver.Postgres(t))
//
// The program in cmd/testserver starts the servers and passes their addresses
// in environment variables; "make test" does that for every module of the
// repository. A plain "go test" without servers skips such tests with one line
// that says how to start them. Under "make test" the variable
// WAYBILL_TEST_REQUIRE turns the skip into a failure, so that no run can pass
// without PostgreSQL unnoticed. Kafka and Pulsar take long to start: "make
// test-all" includes them.
//
// This package only reads the environment, except for Promtool, which is not a
// server and is fetched when a test asks for it. The subpackage manage starts
// and stops processes, so that test binaries do not link that code.
package testserver
