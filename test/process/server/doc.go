// Package server starts a PostgreSQL server of a test's own, which the test may crash and start again. It works where the
// repository's own servers do.
package server
