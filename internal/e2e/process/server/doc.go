// Package server starts a PostgreSQL server of a test's own, which the test may
// crash and restart. It requires the repository's own servers.
package server
