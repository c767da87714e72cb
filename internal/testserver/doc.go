// Package testserver tells tests where the databases and brokers are.
//
// Tests that need a real server ask for it and get a data source name:
//
//	pool, err := pgxpool.New(ctx, testserver.Postgres(t))
//
// The servers themselves are started by the program in cmd/testserver, which
// hands their addresses over in environment variables; "make test" does that
// for every module of the repository. A plain "go test" without servers skips
// such tests with one line that says how to get them. Under "make test" the
// variable WAYBILL_TEST_REQUIRE turns the skip into a failure, so a run that
// claims to have tested PostgreSQL did. Kafka and Pulsar take long to start:
// "make test-all" has them too.
//
// This package only reads the environment, but for Promtool, which is no server
// and is fetched when a test asks for it. Starting and stopping processes is in
// the sub-package manage, so that test binaries do not link it.
package testserver
