// Package requestkey computes the identity under which the record of a request
// is stored. Requests over HTTP and gRPC share it with operators, who search
// for the key that a client has sent.
package requestkey

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"strings"
	"unicode/utf8"
)

// AnyRoute is the stored operation of a key that is valid for one route only.
const AnyRoute = "any route"

// maxOperation is the maximum length of a stored operation, in bytes.
const maxOperation = 128

// Operation returns an operation that fits into its column, or its hash.
func Operation(operation string) string {
	if 0 < len(operation) && len(operation) <= maxOperation && utf8.ValidString(operation) && !strings.ContainsRune(operation, 0) {
		return operation
	}
	sum := sha256.Sum256([]byte(operation))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Key returns the stored key. Each part has its length in front, so no client
// can construct the key of another. The database does not contain the client's
// key.
func Key(tenant, principal, operation, key string) string {
	h := sha256.New()
	for _, part := range []string{tenant, principal, operation, key} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
