// Package clusters has tests of failovers: the soak runs on a cluster of
// servers while its leader is killed, frozen, or left running beside its
// successor. docs/clusters.md reports what they see.
package clusters
