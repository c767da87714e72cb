// Package webhook tests broker/webhook against the reference library of the
// Standard Webhooks specification.
package webhook
