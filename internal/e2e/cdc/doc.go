// Package cdc tests the change data capture section of docs/sql.md, with a
// client that reads the database's log.
package cdc
