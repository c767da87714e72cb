package command

import (
	"strings"
)

// scriptFormat is the form of a migration script.
type scriptFormat string

const (
	// shellScript is for psql, mariadb, mysql and sqlite3.
	shellScript scriptFormat = "shell"
	// gooseScript is a file with an up and a down section.
	gooseScript scriptFormat = "goose"
	// migrateScript is one of golang-migrate's two files: .up.sql, or with
	// --down .down.sql.
	migrateScript scriptFormat = "migrate"
	// atlasScript is a file of a versioned directory of Atlas.
	atlasScript scriptFormat = "atlas"
)

var scriptFormats = []scriptFormat{shellScript, gooseScript, migrateScript, atlasScript}

// joined lists the formats for a reader.
func joined(formats []scriptFormat) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// atlasEnd separates the statements of an Atlas file: semicolons also occur in
// the bodies of functions.
const atlasEnd = "-- end"

// script returns the statements in the format. A file of goose that begins with
// the first migration has both sections.
func (f scriptFormat) script(up, drops []string, from int, down bool) string {
	statements := up
	if down {
		statements = drops
	}
	if len(statements) == 0 {
		return ""
	}
	switch f {
	case gooseScript:
		return goose(up, drops, from, down)
	case shellScript, migrateScript:
	case atlasScript:
		return "-- atlas:delimiter " + atlasEnd + "\n\n" + strings.Join(statements, ";\n"+atlasEnd+"\n\n") + ";\n" + atlasEnd + "\n"
	}
	return strings.Join(statements, ";\n\n") + ";\n"
}

func goose(up, drops []string, from int, down bool) string {
	var b strings.Builder
	section := func(name string, statements []string) {
		b.WriteString("-- +goose " + name + "\n")
		for _, statement := range statements {
			b.WriteString("-- +goose StatementBegin\n" + statement + ";\n-- +goose StatementEnd\n")
		}
	}
	switch {
	case down:
		section("Up", drops)
	case from == 0:
		section("Up", up)
		section("Down", drops)
	default:
		section("Up", up)
	}
	return b.String()
}
