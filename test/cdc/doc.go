// Package cdc tests what docs/sql.md says about change data capture, with a client that reads the database's log.
package cdc
