// Package payloads keeps payloads in stores of gocloud.dev/blob: in memory, in
// files, and in a real S3 server.
package payloads
