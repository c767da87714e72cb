// Package private starts servers of a test's own, which the test may kill,
// freeze and restart.
package private
