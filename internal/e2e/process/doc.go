// Package process tests stopped, killed and paused relay processes with real
// processes and real signals, on every database: graceful stop, drain timeout,
// kill, pause, and events that kill their process.
//
// The test binary is also the program under test: with an environment variable
// set it runs a relay whose sink writes every delivery to a journal that all
// processes share; see package journal.
package process
