// Package readme runs the program of README.md, and compiles the code of the
// guides.
package readme
