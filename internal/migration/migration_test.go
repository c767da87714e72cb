package migration_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/waybillhq/waybill/internal/migration"
)

func TestReadWantsVersionsWithoutGaps(t *testing.T) {
	for _, names := range [][]string{{"002_b.sql"}, {"001_a.sql", "003_c.sql"}, {"first.sql"}} {
		files := fstest.MapFS{}
		for _, name := range names {
			files["m/"+name] = &fstest.MapFile{Data: []byte("SELECT 1")}
		}
		if _, err := migration.Read(files, "m", strings.NewReplacer()); err == nil {
			t.Errorf("%v was accepted", names)
		}
	}
}

func ExampleRead() {
	files := fstest.MapFS{"m/001_tables.sql": &fstest.MapFile{Data: []byte("CREATE TABLE {outbox} (id int)\n-- next\nCREATE TABLE {dead} (id int)\n")}}
	steps, err := migration.Read(files, "m", strings.NewReplacer("{outbox}", `"my_outbox"`, "{dead}", `"my_dead"`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(steps[0].Version, steps[0].Name)
	fmt.Println(strings.Join(steps[0].Statements, "\n"))
	// Output:
	// 1 tables
	// CREATE TABLE "my_outbox" (id int)
	// CREATE TABLE "my_dead" (id int)
}

func ExampleDrops() {
	for _, statement := range migration.Drops([]string{
		`CREATE TABLE IF NOT EXISTS "a" (id int)`,
		`CREATE FUNCTION "s"."f"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$`,
		`CREATE TRIGGER "t" BEFORE INSERT ON "a" FOR EACH ROW EXECUTE FUNCTION "s"."f"()`,
		`CREATE INDEX "i" ON "a" (id)`,
		`CREATE OR REPLACE FUNCTION "s"."f"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`,
		"CREATE PROCEDURE `p`() SELECT 1",
	}) {
		fmt.Println(statement)
	}
	// Output:
	// DROP PROCEDURE IF EXISTS `p`
	// DROP TRIGGER IF EXISTS "t" ON "a"
	// DROP FUNCTION IF EXISTS "s"."f"
	// DROP TABLE IF EXISTS "a"
}
