// Package repocheck has no code, only tests of the repository itself: import
// directions, guarantees whose tests must exist, and links in the
// documentation.
package repocheck
