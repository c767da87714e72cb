//go:build linux || darwin

// Command testserver starts private databases and brokers for tests.
//
//	testserver run -- go test ./...
//
// See "testserver --help" for the other commands.
package main

import (
	"context"
	"os"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
