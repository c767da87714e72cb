// Package migrations hands the output of waybill migrate sql to goose,
// golang-migrate and Atlas.
package migrations
