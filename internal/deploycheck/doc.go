// Package deploycheck tests the files of deploy: each with the parser, schema
// or linter of the tool that reads it, and with the program, which has to
// accept its settings and to start with them.
//
// The module is not in go.work: the linters require hundreds of modules, and a
// workspace would select their versions for every other module, too.
//
//	make test-deploy
package deploycheck
