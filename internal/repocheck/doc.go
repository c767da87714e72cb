// Package repocheck has no code, only tests about the repository itself: which package may import which, that every required
// feature names the code and the test that exist, and that links in the documentation lead somewhere.
package repocheck
