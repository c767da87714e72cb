// Package child runs the test binary again as another program, and sends it
// signals. It requires an operating system with signals.
package child
