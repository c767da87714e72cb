// Package store holds what users of a store see: the states and rows of an
// outbox, the records of consumer groups, jobs and idempotency keys, their
// filters and counts, and the migrations of the tables.
//
// The stores are in their own packages: pgstore, mysqlstore, sqlitestore and
// memstore. Package [github.com/waybillhq/waybill/store/driver] is for authors
// of stores.
package store
