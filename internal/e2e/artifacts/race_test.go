//go:build race

package main

// raceDetector: the race detector makes packing take minutes.
const raceDetector = true
