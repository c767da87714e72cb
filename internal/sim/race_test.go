//go:build race

package sim

// raceDetector: the race detector takes seven times the CPU.
const raceDetector = true
