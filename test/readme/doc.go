// Package readme runs what README.md shows, and compiles what the guides show.
package readme
