// Package ent is what ent generates from the package schema.
package ent

// The flag gives Tx the methods ExecContext and QueryContext, and with them all that outbox.WriteSQL needs. The version of the
// generator is that of the library in go.mod; it wants to add what itself imports there, which a tidy removes again:
//
//	GOWORK=off GOFLAGS=-mod=mod go run ./internal/release/cmd/release go internal/e2e go generate ./orm/ent && make tidy
//
//go:generate go run entgo.io/ent/cmd/ent generate --feature sql/execquery ./schema
