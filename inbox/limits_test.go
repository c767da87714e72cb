package inbox_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestDedupID: tenant and key cannot be confused. The value is stored, so it
// must not change.
func TestDedupID(t *testing.T) {
	seen := map[string][2]string{}
	for _, c := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"abc", ""}, {"", ""}, {"a", "b"}, {"b", "a"}} {
		id := inbox.DedupID(c[0], c[1]).String()
		if before, there := seen[id]; there {
			t.Errorf("%q and %q have one id", before, c)
		}
		seen[id] = c
	}
	id := inbox.DedupID("acme", "enrollment:1")
	if got := hex.EncodeToString(id[:]); got != "ccc802248b2b36519b350a501f0ba861" {
		t.Errorf("the id is %s", got)
	}
}

// purged is a store with a number of old records.
type purged struct {
	driver.Inbox[*memstore.Tx]
	left   int
	limits []int
}

func (p *purged) PurgeRecords(_ context.Context, _ string, _ time.Duration, limit int) (int, error) {
	n := min(p.left, limit)
	p.left -= n
	p.limits = append(p.limits, limit)
	return n, nil
}

// TestPurgeGoesOn: Purge continues in batches until no old record is left.
func TestPurgeGoesOn(t *testing.T) {
	for left, batches := range map[int]int{0: 1, 4999: 1, 5000: 2, 12_345: 3} {
		db, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		p := &purged{Inbox: db.Driver().Inbox, left: left}
		in, err := inbox.New[*memstore.Tx](testroles.Of[*memstore.Tx](p), inbox.Config{Retention: time.Hour, RedeliveryWindow: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		in.MustGroup("G", inbox.Options{})
		if err := in.Purge(t.Context()); err != nil || p.left != 0 || len(p.limits) != batches || slices.Max(p.limits) != 5000 {
			t.Errorf("of %d records %d are left after batches of %v, %v", left, p.left, p.limits, err)
		}
	}
}

// TestGroupNames: a group's name has at most 255 bytes, the size of its column.
func TestGroupNames(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New[*memstore.Tx](db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in.MustGroup(strings.Repeat("g", 255), inbox.Options{})
	for name, want := range map[string]string{
		"":                       `inbox: group "": the name has 0 bytes, want 1 to 255`,
		strings.Repeat("g", 256): `inbox: group "` + strings.Repeat("g", 256) + `": the name has 256 bytes, want 1 to 255`,
		strings.Repeat("g", 255): `inbox: group "` + strings.Repeat("g", 255) + `": the name is taken`,
	} {
		if _, err := in.Group(name, inbox.Options{}); err == nil || err.Error() != want {
			t.Errorf("Group: %v, want %s", err, want)
		}
	}
}
