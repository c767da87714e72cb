package mysqlstore

import (
	"encoding/hex"
	"fmt"
	"iter"
	"slices"

	"github.com/waybillhq/waybill"
)

// maxIDs is the maximum number of ids in one statement.
const maxIDs = 1000

// parts splits a list into chunks.
func parts[E any](list []E, size int) iter.Seq[[]E] { return slices.Chunk(list, size) }

// idArgs returns ids as query arguments.
func idArgs(ids []waybill.ID) []any {
	args := make([]any, len(ids))
	for i := range ids {
		args[i] = ids[i][:]
	}
	return args
}

// hexID returns an id in hexadecimal digits, as in JSON.
func hexID(id waybill.ID) string { return hex.EncodeToString(id[:]) }

// idList returns ids as a JSON list.
func idList(ids []waybill.ID) string { return string(list(ids, appendID)) }

// scanID lets database/sql write 16 bytes into an id. NULL is the zero id.
type scanID waybill.ID

// Scan implements sql.Scanner.
func (id *scanID) Scan(src any) error {
	*id = scanID{}
	if src == nil {
		return nil
	}
	data, ok := src.([]byte)
	if !ok || len(data) != len(id) {
		return fmt.Errorf("mysqlstore: %T is not an id of 16 bytes", src)
	}
	copy(id[:], data)
	return nil
}
