// Package orm shows, in its tests, how events are written in the transactions of sqlx, gorm, bun, ent and sqlc. docs/orm.md
// quotes the recipes, one file per library: what it says is what is tested.
//
// The folder ent and the folders in sqlc are generated; the comment on go:generate says how.
package orm

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate -f sqlc/sqlc.yaml
