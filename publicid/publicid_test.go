package publicid_test

import (
	"database/sql"
	"database/sql/driver"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/publicid"
)

type order struct{}

func (order) PublicPrefix() string { return "ord" }

type customer struct{}

func (customer) PublicPrefix() string { return "cus" }

// voucher ids are typed by people.
type voucher struct{}

func (voucher) PublicPrefix() string { return "v2" }
func (voucher) PublicChecksum()      {}

var (
	_ encoding.TextMarshaler   = publicid.ID[order]{}
	_ encoding.TextUnmarshaler = &publicid.ID[order]{}
	_ driver.Valuer            = publicid.ID[order]{}
	_ sql.Scanner              = &publicid.ID[order]{}
	_ fmt.Stringer             = publicid.ID[order]{}
)

const (
	ulidText    = "01J9ZT6VB2E4X8K3M5N7P9QRST"
	orderText   = "ord_01j9zt6vb2e4x8k3m5n7p9qrst"
	voucherText = "v2_01j9zt6vb2e4x8k3m5n7p9qrstm0"
)

func ulid(t testing.TB) waybill.ID {
	t.Helper()
	id, err := waybill.ParseID(ulidText)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Users store the texts in their databases: the texts never change.
func TestTextsNeverChange(t *testing.T) {
	if got := publicid.From[order](ulid(t)).String(); got != orderText {
		t.Error(got)
	}
	if got := publicid.From[voucher](ulid(t)).String(); got != voucherText {
		t.Error(got)
	}
	got, err := publicid.Parse[order](orderText)
	if err != nil || got.ULID() != ulid(t) || got.PublicID() != orderText || got.Time() != ulid(t).Time() {
		t.Error(got, err)
	}
	if got, err := publicid.Parse[voucher](voucherText); err != nil || got.ULID() != ulid(t) {
		t.Error(got, err)
	}
}

func TestNewIDsIncreaseAsTexts(t *testing.T) {
	var texts []string
	for range 1000 {
		texts = append(texts, publicid.New[order]().String())
	}
	if !slices.IsSorted(texts) || len(slices.Compact(texts)) != 1000 {
		t.Error("the ids do not increase")
	}
}

func TestParseIsStrict(t *testing.T) {
	for _, text := range []string{
		"", "ord", "ord_", "_01j9zt6vb2e4x8k3m5n7p9qrst", "01j9zt6vb2e4x8k3m5n7p9qrst",
		"cus_01j9zt6vb2e4x8k3m5n7p9qrst",  // prefix of another type
		"order_01j9zt6vb2e4x8k3m5n7p9qrs", // longer prefix
		"ord-01j9zt6vb2e4x8k3m5n7p9qrst",
		"ORD_01j9zt6vb2e4x8k3m5n7p9qrst",
		"ord_01J9ZT6VB2E4X8K3M5N7P9QRST",
		"ord_01j9zt6vb2e4x8k3m5n7p9qrs",
		"ord_01j9zt6vb2e4x8k3m5n7p9qrstt",
		"ord_01j9zt6vb2e4x8k3m5n7p9qrsu", // u is not in the alphabet
		"ord_o1j9zt6vb2e4x8k3m5n7p9qrst", // o is not 0
		"ord_01j9zt6vb2e4x8k3m5n7p9qrsé",
		" ord_01j9zt6vb2e4x8k3m5n7p9qrst",
		"ord_01j9zt6vb2e4x8k3m5n7p9qrst\n",
		"ord_8zzzzzzzzzzzzzzzzzzzzzzzzz", // larger than 128 bits
		"ord_00000000000000000000000000",
	} {
		id, err := publicid.Parse[order](text)
		if !errors.Is(err, publicid.ErrInvalid) || !id.IsZero() {
			t.Errorf("%q is %v, %v", text, id, err)
		}
		if err != nil && len(text) > 5 && strings.Contains(err.Error(), text) {
			t.Errorf("the error repeats the text: %v", err)
		}
	}
	if _, err := publicid.Parse[voucher](strings.TrimSuffix(voucherText, "m0")); !errors.Is(err, publicid.ErrInvalid) {
		t.Error("a missing checksum is accepted")
	}
}

// Every text with one or two wrong characters is rejected: all 31·28 + 31²·378
// of them.
func TestChecksumDetectsTwoWrongCharacters(t *testing.T) {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	text := []byte(voucherText)
	for i := 3; i < len(text); i++ {
		for j := i; j < len(text); j++ {
			a, b := text[i], text[j]
			for _, x := range []byte(alphabet) {
				for _, y := range []byte(alphabet) {
					text[i], text[j] = x, y
					if string(text) == voucherText {
						continue
					}
					if _, err := publicid.Parse[voucher](string(text)); err == nil {
						t.Fatalf("%s is accepted instead of %s", text, voucherText)
					}
				}
			}
			text[i], text[j] = a, b
		}
	}
}

func TestJSON(t *testing.T) {
	type body struct {
		Order publicid.ID[order]         `json:"order"`
		Gone  publicid.ID[order]         `json:"gone,omitzero"`
		Many  map[publicid.ID[order]]int `json:"many"`
		Buyer *publicid.ID[customer]     `json:"buyer"`
	}
	in := body{Order: publicid.From[order](ulid(t)), Many: map[publicid.ID[order]]int{publicid.From[order](ulid(t)): 1}}
	text, err := json.Marshal(in)
	if err != nil || string(text) != `{"order":"`+orderText+`","many":{"`+orderText+`":1},"buyer":null}` {
		t.Fatalf("%s, %v", text, err)
	}
	var out body
	if err := json.Unmarshal(text, &out); err != nil || out.Order != in.Order || out.Many[in.Order] != 1 {
		t.Error(out, err)
	}
	for _, bad := range []string{`{"order":1}`, `{"order":"cus_01j9zt6vb2e4x8k3m5n7p9qrst"}`, `{"buyer":"` + orderText + `"}`} {
		if err := json.Unmarshal([]byte(bad), &out); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestSQL(t *testing.T) {
	id := publicid.From[order](ulid(t))
	value, err := id.Value()
	if err != nil || value != orderText {
		t.Error(value, err)
	}
	for _, column := range []any{orderText, []byte(orderText), id.Bytes()} {
		var got publicid.ID[order]
		if err := got.Scan(column); err != nil || got != id {
			t.Errorf("%v: %v, %v", column, got, err)
		}
	}
	got := id
	if err := got.Scan(nil); err != nil || !got.IsZero() {
		t.Error(got, err)
	}
	if value, err := got.Value(); value != nil || err != nil || got.Bytes() != nil || got.String() != "" {
		t.Error("the zero id is not NULL")
	}
	for _, column := range []any{"", "x", 7, []byte("ord"), "cus_01j9zt6vb2e4x8k3m5n7p9qrst"} {
		if err := got.Scan(column); !errors.Is(err, publicid.ErrInvalid) {
			t.Errorf("%v is accepted", column)
		}
	}
}

type (
	none   struct{}
	upper  struct{}
	digit  struct{}
	hyphen struct{}
	long   struct{}
)

func (none) PublicPrefix() string   { return "" }
func (upper) PublicPrefix() string  { return "Ord" }
func (digit) PublicPrefix() string  { return "2v" }
func (hyphen) PublicPrefix() string { return "o_d" }
func (long) PublicPrefix() string   { return "abcdefghijklmnopq" }

func TestABadPrefixPanics(t *testing.T) {
	for name, use := range map[string]func(){
		"none": func() { publicid.New[none]() }, "upper": func() { publicid.New[upper]() }, "digit": func() { publicid.New[digit]() },
		"hyphen": func() { publicid.New[hyphen]() }, "long": func() { _, _ = publicid.Parse[long]("x") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("an invalid prefix is accepted")
				}
			}()
			use()
		})
	}
}

// FuzzParse: an accepted text equals the text that String writes.
func FuzzParse(f *testing.F) {
	for _, text := range []string{orderText, voucherText, "", "ord_", "ord_7zzzzzzzzzzzzzzzzzzzzzzzzz"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := publicid.Parse[order](text); err == nil && id.String() != text {
			t.Errorf("%q is accepted, and written %q", text, id)
		}
		if id, err := publicid.Parse[voucher](text); err == nil && id.String() != text {
			t.Errorf("%q is accepted, and written %q", text, id)
		}
	})
}

// FuzzRoundTrip: every id except zero can be read back, as text and from a
// column.
func FuzzRoundTrip(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Add([]byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 16 {
			return
		}
		id := publicid.From[voucher](waybill.ID(b))
		if id.IsZero() {
			return
		}
		if got, err := publicid.Parse[voucher](id.String()); err != nil || got != id {
			t.Errorf("%s: %v, %v", id, got, err)
		}
	})
}
