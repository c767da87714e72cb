// Package child runs the test binary again as another program, and sends it signals. It works where there are signals.
package child
