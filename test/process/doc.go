// Package process shows, in its tests, what becomes of events when the processes that deliver them are stopped, killed and
// paused: behaviours 27 to 31 of the project's list, with real processes and real signals, on every database.
//
// The test binary is also the program under test: with an environment variable set it runs a relay whose sink writes every
// delivery to a journal that all processes share; see package journal.
package process
