package pgstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybillhq/waybill/store"
)

// wireTypes are the types of the columns in the binary format.
var wireTypes = map[string]uint32{
	"lane": pgtype.Int2OID, "seq": pgtype.Int8OID, "id": pgtype.UUIDOID, "schema_version": pgtype.Int4OID, "priority": pgtype.Int2OID,
	"payload": pgtype.ByteaOID, "occurred_at": pgtype.TimestamptzOID, "created_at": pgtype.TimestamptzOID, "available_at": pgtype.TimestamptzOID,
}

// wireRow encodes a row with the driver's own encoders. A column without a
// value is NULL.
func wireRow(t *testing.T, columns string, values map[string]any) [][]byte {
	t.Helper()
	types := pgtype.NewMap()
	var row [][]byte
	for column := range strings.SplitSeq(columns, ",") {
		column = strings.TrimSpace(column)
		oid, ok := wireTypes[column]
		if !ok {
			oid = pgtype.TextOID
		}
		var b []byte
		if value, ok := values[column]; ok {
			var err error
			if b, err = types.Encode(oid, pgtype.BinaryFormatCode, value, []byte{}); err != nil {
				t.Fatalf("%s: %v", column, err)
			}
		}
		row = append(row, b)
	}
	return row
}

// wireTime is a time with microseconds before and after the decimal point.
func wireTime(hour int) time.Time { return time.Date(2031, 5, 17, hour, 4, 5, 678901000, time.UTC) }

// fullRow has a different value in each column.
func fullRow() map[string]any {
	return map[string]any{
		"lane": int16(31), "seq": int64(1) << 40, "id": [16]byte{0x01, 0x9a, 0x11, 0x22, 15: 0xff}, "type": "OrderPlaced", "aggregate_type": "order",
		"aggregate_id": "o-1", "tenant_id": "acme", "topic": "orders", "routing_key": "eu", "schema_id": "order.v3", "schema_version": int32(70000),
		"dedup_key": "d-1", "occurred_at": wireTime(1), "priority": int16(-7), "correlation_id": "corr", "causation_id": "cause",
		"headers": `{"b":"2","a":"1"}`, "content_type": "text/plain", "payload": []byte("\x00\xff payload"), "created_at": wireTime(2), "available_at": wireTime(3),
	}
}

// changed returns a full row with other values. A nil value is NULL.
func changed(changes map[string]any) map[string]any {
	row := fullRow()
	for column, value := range changes {
		if row[column] = value; value == nil {
			delete(row, column)
		}
	}
	return row
}

// TestRawRows decodes rows that the driver has encoded, and compares the result
// with testdata/raw.golden.
func TestRawRows(t *testing.T) {
	var b strings.Builder
	var rows rawDecoder
	for _, c := range []struct {
		name   string
		values map[string]any
	}{
		{"every column", fullRow()},
		{"the same texts again", changed(map[string]any{"lane": int16(0), "seq": int64(2), "payload": []byte{}})},
		{"other texts, times before 2000", changed(map[string]any{
			"type": "OrderPaid", "aggregate_type": "invoice", "tenant_id": "other", "topic": "invoices", "routing_key": "us", "schema_id": "paid.v1",
			"content_type": "application/json", "occurred_at": time.Date(1999, 12, 31, 23, 59, 59, 999999000, time.UTC), "available_at": nil,
		})},
		{"only what is required", map[string]any{
			"lane": int16(5), "seq": int64(7), "id": [16]byte{1}, "type": "T", "schema_version": int32(0), "priority": int16(0),
			"payload": []byte("{}"), "created_at": wireTime(4),
		}},
		{"infinite times", changed(map[string]any{
			"occurred_at": pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, "available_at": pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		})},
		{"headers that are not an object", changed(map[string]any{"headers": "[]"})},
	} {
		var row store.Row
		rows.row(&row, wireRow(t, rawColumns, c.values))
		fails := row.Err != nil // its text is the decoder's of the headers
		row.Err = nil
		text, err := json.MarshalIndent(row, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "# row: %s\n%s\nerror: %t\n\n", c.name, text, fails)
	}
	var refs refDecoder
	for _, c := range []struct {
		name   string
		values map[string]any
	}{
		{"of an aggregate", fullRow()},
		{"of the same aggregate", changed(map[string]any{"seq": int64(9)})},
		{"of another aggregate", changed(map[string]any{"tenant_id": "", "aggregate_type": "invoice", "aggregate_id": "i-2"})},
		{"without an aggregate", changed(map[string]any{"tenant_id": "acme", "aggregate_id": ""})},
	} {
		text, err := json.Marshal(refs.ref(wireRow(t, "lane, seq, id, tenant_id, aggregate_type, aggregate_id", c.values)))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "# sweep: a row %s\n%s\n", c.name, text)
	}
	golden(t, "raw.golden", b.String())
}

// TestRawPayloads: payloads of all sizes are copies that do not overlap, and
// appending to one does not change the next.
func TestRawPayloads(t *testing.T) {
	var d rawDecoder
	var got [][]byte
	sizes := []int{0, 1, pieceSize/4 - 1, pieceSize / 4, pieceSize/4 + 1, pieceSize, 3, pieceSize / 4, pieceSize / 4, pieceSize / 4, 5}
	buffer := make([]byte, pieceSize)
	for i, size := range sizes {
		for j := range buffer {
			buffer[j] = byte(i + 1)
		}
		got = append(got, d.bytes(buffer[:size]))
	}
	for i, b := range got {
		_ = append(b, 0xff)
		if len(b) != sizes[i] || strings.Trim(string(b), string([]byte{byte(i + 1)})) != "" {
			t.Errorf("payload %d has other bytes", i)
		}
	}
	for i, b := range got {
		if strings.Trim(string(b), string([]byte{byte(i + 1)})) != "" {
			t.Errorf("payload %d changed when another one grew", i)
		}
	}
}
