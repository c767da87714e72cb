package orm_test

import (
	"database/sql"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"gorm.io/gorm"

	"github.com/waybillhq/waybill/internal/e2e/orm/ent"
	"github.com/waybillhq/waybill/internal/e2e/orm/sqlc/pgxorders"
	"github.com/waybillhq/waybill/internal/e2e/orm/sqlc/sqlorders"
	"github.com/waybillhq/waybill/store/driver"
)

// TestCompilerRefuses: writing requires a transaction. The compiler checks the
// constraint that reflect checks here.
func TestCompilerRefuses(t *testing.T) {
	for _, handle := range []reflect.Type{
		reflect.TypeFor[*sql.DB](), reflect.TypeFor[*sql.Conn](),
		reflect.TypeFor[*sqlx.DB](), reflect.TypeFor[*sqlx.Conn](), reflect.TypeFor[sqlx.ExtContext](),
		reflect.TypeFor[*gorm.DB](), reflect.TypeFor[gorm.ConnPool](), reflect.TypeFor[*gorm.PreparedStmtDB](),
		reflect.TypeFor[*bun.DB](), reflect.TypeFor[bun.Conn](), reflect.TypeFor[bun.IDB](),
		reflect.TypeFor[*ent.Client](),
		reflect.TypeFor[*pgxpool.Pool](), reflect.TypeFor[*pgxpool.Conn](), reflect.TypeFor[*pgx.Conn](),
		reflect.TypeFor[pgxorders.DBTX](), reflect.TypeFor[*pgxorders.Queries](),
		reflect.TypeFor[sqlorders.DBTX](), reflect.TypeFor[*sqlorders.Queries](),
	} {
		for what, tx := range map[string]reflect.Type{
			"Write, over database/sql": reflect.TypeFor[*sql.Tx](),
			"Write, over pgx":          reflect.TypeFor[pgx.Tx](),
			"WriteSQL":                 reflect.TypeFor[driver.SQLTx](),
		} {
			if handle.AssignableTo(tx) {
				t.Errorf("%s takes a %v", what, handle)
			}
		}
	}
}
