// Package readme runs what README.md shows.
package readme
