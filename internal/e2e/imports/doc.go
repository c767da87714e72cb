// Package imports runs the guides of docs/import.md: the other systems' own
// libraries fill their tables, and the commands of the guide import them.
package imports
