// Package release prepares the tags of all modules.
//
// Between releases the modules require each other at v0.0.0, a version that is
// never published, and go.work replaces that version with the folder of the
// module. No go.mod has a replace directive for a module of the repository. A
// release writes the released version into all go.mod files, into go.work and
// into the go.sum files, in a commit beside the branch.
package release
