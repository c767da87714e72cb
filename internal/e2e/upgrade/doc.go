// Package upgrade tests rolling upgrades from earlier layouts of the tables:
// programs of an earlier commit, built from the repository's history, work
// while a program of this commit migrates the tables and takes over.
package upgrade
