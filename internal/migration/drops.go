package migration

import (
	"regexp"
	"slices"
)

const quoted = "((?:[\"`][^\"`]+[\"`]\\.)?[\"`][^\"`]+[\"`])"

// created matches what has to be dropped, with its quoted name and, for a
// trigger, its table. Indexes and partitions go with their tables.
var created = regexp.MustCompile("CREATE (?:OR REPLACE )?(?:(TABLE|FUNCTION|PROCEDURE|SEQUENCE) (?:IF NOT EXISTS )?" + quoted +
	"|TRIGGER " + quoted + `[\w\s]+? ON ` + quoted + ")")

// Drops returns the statements that drop what statements create, the last one
// first.
func Drops(statements []string) []string {
	var drops []string
	for _, statement := range statements {
		for _, found := range created.FindAllStringSubmatch(statement, -1) {
			drop := "DROP " + found[1] + " IF EXISTS " + found[2]
			if found[1] == "" {
				drop = "DROP TRIGGER IF EXISTS " + found[3] + " ON " + found[4]
			}
			if !slices.Contains(drops, drop) {
				drops = append(drops, drop)
			}
		}
	}
	slices.Reverse(drops)
	return drops
}
