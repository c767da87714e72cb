//go:build linux || darwin

// Package manage installs, starts and stops the private databases and brokers
// that tests run against.
//
// Everything is in one home folder, .servers in the repository:
//
//	.servers/
//	  lock                    held while instances are made or swept
//	  templates/              freshly initialized data folders, by version
//	  run-4711-x1y2z3/        one instance: the servers of one test run
//	    lock                  held by the process that owns the instance
//	    postgres.json         how the server was started
//	    postgres.log
//	    postgres/data/
//	  kept/                   the instance of "testserver start"
//
// Ownership is an advisory lock on the instance's lock file. The kernel drops
// it when the owner dies in any way, so the next run can distinguish an
// instance in use from an abandoned one without trusting a process id that may
// have been reused. Abandoned instances are stopped and removed.
//
// Kafka and Pulsar are Java archives, which Maven fetches once into the user's
// cache folder.
//
// A server that a test has started for itself can be killed, restarted with the
// same data on the same port, and frozen: see Server, and the subpackage
// private of testserver.
//
// A process is only signaled when it is a known server program working in, or
// started with, a data folder below the home folder.
package manage
