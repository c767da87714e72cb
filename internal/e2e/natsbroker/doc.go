// Package natsbroker tests broker/natsbroker against servers inside the
// process. The tests are here because the server is a large requirement.
package natsbroker
