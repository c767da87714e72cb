package sqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/migration"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

func TestCheckTables(t *testing.T) {
	for _, c := range []struct {
		prefix, schema string
		lanes          int
		want           []string // the invalid fields
	}{
		{"waybill_", "", 0, nil},
		{"waybill_", "app", 1024, nil},
		{"1", "a b", 1025, []string{"Config.Schema", "Config.Prefix", "Config.Lanes"}},
		{"waybill_", "", -1, []string{"Config.Lanes"}},
	} {
		var got []string
		for _, err := range sqlstore.CheckTables(c.schema, c.prefix, c.lanes) {
			field, _, _ := strings.Cut(err.Error(), ":")
			got = append(got, field)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestCheckPurge(t *testing.T) {
	for _, c := range []struct {
		state store.State
		age   time.Duration
		ok    bool
	}{
		{store.Delivered, 0, true},
		{store.Dead, time.Hour, true},
		{store.Ready, 0, false},
		{store.Delayed, 0, false},
		{store.State(99), 0, false},
		{store.Dead, -1, false},
	} {
		if err := sqlstore.CheckPurge(c.state, c.age); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestWholeSecond(t *testing.T) {
	at := time.Date(2031, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	for in, want := range map[time.Time]time.Time{at: at, at.Add(1): at.Add(time.Second), at.Add(-1): at} {
		if got := sqlstore.WholeSecond(in); !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("%v: %v, want %v", in, got, want)
		}
	}
}

func TestWholeMicrosecond(t *testing.T) {
	at := time.Date(2031, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))
	for in, want := range map[time.Time]time.Time{at: at, at.Add(1): at.Add(time.Microsecond), at.Add(-1): at} {
		if got := sqlstore.WholeMicrosecond(in); !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("%v: %v, want %v", in, got, want)
		}
	}
}

func TestInOrder(t *testing.T) {
	a, b, c := waybill.NewID(), waybill.NewID(), waybill.NewID()
	if got := sqlstore.InOrder([]waybill.ID{c, a, b, a}, map[waybill.ID]bool{a: true, c: true}); !slices.Equal(got, []waybill.ID{c, a}) {
		t.Errorf("%v", got)
	}
}

func TestMigrate(t *testing.T) {
	steps := []migration.Step{
		{Version: 1, Name: "one", Statements: []string{"a"}},
		{Version: 2, Name: "two", Statements: []string{"b", "c"}},
		{Version: 3, Name: "three", Statements: []string{"d"}},
	}
	had := map[int]store.Migration{1: {Version: 1, Name: "one"}, 9: {Version: 9}}
	boom := errors.New("boom")
	for fails, want := range map[string]string{"": "b c 2 d 3", "c": "b", "d": "b c 2", "3": "b c 2 d"} {
		var log []string
		do := func(what string) error {
			if what == fails {
				return boom
			}
			log = append(log, what)
			return nil
		}
		done, err := sqlstore.Migrate(steps, had, do, func(s migration.Step, at time.Time) error {
			if at.IsZero() {
				t.Error("a step has no time")
			}
			return do(map[int]string{2: "2", 3: "3"}[s.Version])
		})
		if strings.Join(log, " ") != want || (fails == "") != (err == nil) || fails != "" && !errors.Is(err, boom) {
			t.Errorf("with an error at %q: %v, %v", fails, log, err)
		}
		if recorded := strings.Count(want, "2") + strings.Count(want, "3"); len(done) != recorded {
			t.Errorf("with an error at %q: %+v", fails, done)
		}
	}
}

func TestMigrations(t *testing.T) {
	at := time.Now()
	had := map[int]store.Migration{1: {Version: 1, Name: "one", AppliedAt: at}, 9: {Version: 9, Name: "nine", AppliedAt: at}, 7: {Version: 7, AppliedAt: at}}
	got := sqlstore.Migrations([]migration.Step{{Version: 1, Name: "one"}, {Version: 2, Name: "two"}}, had)
	want := []store.Migration{
		{Version: 1, Name: "one", AppliedAt: at},
		{Version: 2, Name: "two"},
		{Version: 7, AppliedAt: at, Unknown: true},
		{Version: 9, Name: "nine", AppliedAt: at, Unknown: true},
	}
	if !slices.Equal(got, want) || len(had) != 3 {
		t.Errorf("%+v", got)
	}
}

// TestClaimSink: a claim succeeds on an empty record, on its own record, and
// with a takeover if no node is live. It notices a relay that is faster.
func TestClaimSink(t *testing.T) {
	for _, c := range []struct {
		name             string
		recorded, faster string // faster is recorded before First
		live, takeOver   bool
		before, after    string
		want             error
	}{
		{"empty", "", "", false, false, "", "mine", nil},
		{"own", "mine", "", true, false, "mine", "mine", nil},
		{"another", "other", "", false, false, "other", "other", waybill.ErrOtherSink},
		{"takeover", "other", "", false, true, "other", "mine", nil},
		{"takeover of a live relay", "other", "", true, true, "other", "other", store.ErrRelayLive},
		{"another is faster", "", "other", false, false, "other", "other", waybill.ErrOtherSink},
		{"another is faster than a takeover", "", "other", false, true, "other", "other", waybill.ErrOtherSink},
	} {
		recorded := c.recorded
		before, err := sqlstore.Sink{
			Read: func() (string, error) { return recorded, nil },
			First: func(sink string) error {
				if recorded = c.faster; recorded == "" {
					recorded = sink
				}
				return nil
			},
			Replace: func(sink, old string) error {
				if recorded == old && !c.live {
					recorded = sink
				}
				return nil
			},
		}.Claim("mine", c.takeOver)
		if before != c.before || recorded != c.after || !errors.Is(err, c.want) {
			t.Errorf("%s: returns %q, %v and records %q", c.name, before, err, recorded)
		}
	}
}
