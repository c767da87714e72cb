// Package restore restores databases from backups while Waybill uses them, with
// the databases' own programs: the database of an outbox, after which no
// position may be issued again, and the database of a consumer, whose effects a
// replay of the history makes complete again.
package restore
