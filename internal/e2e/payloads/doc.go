// Package payloads keeps payloads in stores of gocloud.dev/blob.
package payloads
