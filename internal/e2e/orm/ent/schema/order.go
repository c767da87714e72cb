// Package schema holds what ent generates its code from: one small entity.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Order is a row of the table that all recipes share.
type Order struct{ ent.Schema }

// Annotations names the table: ent would guess the same.
func (Order) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Annotation{Table: "orders"}}
}

// Fields are the table's columns.
func (Order) Fields() []ent.Field {
	return []ent.Field{
		field.String("id"),
		field.Int64("total"),
	}
}
