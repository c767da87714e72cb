package payload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/payload"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// key returns a key whose secret repeats one byte.
func key(id string, b byte) payload.Key {
	return payload.Key{ID: id, Secret: bytes.Repeat([]byte{b}, 32)}
}

func pipeline(t *testing.T, transforms ...payload.Transform) *payload.Pipeline {
	t.Helper()
	p, err := payload.New(transforms...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func encrypt(t *testing.T, current payload.Key, older ...payload.Key) payload.Transform {
	t.Helper()
	e, err := payload.Encrypt(current, older...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// note returns an event with a compressible payload of n bytes.
func note(n int) waybill.Event {
	return waybill.Event{
		ID: waybill.NewID(), Type: "NoteTaken", TenantID: "acme", Headers: map[string]string{"a": "b"},
		Payload: fmt.Appendf(nil, "%q", strings.Repeat("secret ", n/7)),
	}
}

func seal(t *testing.T, p *payload.Pipeline, ev waybill.Event) waybill.Event {
	t.Helper()
	sealed, err := p.Seal(t.Context(), ev)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// TestRoundTrip: every list of transforms gives back the event that was sealed,
// and what is in between shows nothing of an encrypted payload.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	gzip, secret, claim := payload.Gzip(100), encrypt(t, key("k1", 1)), payload.ClaimCheck(payload.Folder(dir), 200)
	for _, c := range []struct {
		name       string
		transforms []payload.Transform
		size       int
		contents   string
		want       string // the header, or its begin
	}{
		{"gzip", []payload.Transform{gzip}, 700, "", "gzip"},
		{"small", []payload.Transform{gzip}, 70, "", ""},
		{"encrypt", []payload.Transform{secret}, 70, "", "aes-256-gcm key=k1"},
		{"all", []payload.Transform{gzip, secret, payload.ClaimCheck(payload.Folder(dir), 10)}, 7000, "", "gzip, aes-256-gcm key=k1, claim-check blob="},
		{"claim", []payload.Transform{claim}, 7000, "text/plain; charset=utf-8", "claim-check blob="},
		{"none", nil, 70, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pipeline(t, c.transforms...)
			ev := note(c.size)
			ev.ContentType = c.contents
			headers := maps.Clone(ev.Headers)
			sealed := seal(t, p, ev)
			if got := sealed.Headers[payload.HeaderEncoding]; !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("the header is %q, want %q", got, c.want)
			}
			if c.want != "" && bytes.Contains(sealed.Payload, []byte("secret")) {
				t.Error("the sealed payload has the text")
			}
			if !maps.Equal(ev.Headers, headers) {
				t.Error("Seal changes the headers in place")
			}
			if err := sealed.Validate(); err != nil {
				t.Errorf("a sealed event cannot be written: %v", err)
			}
			if again := seal(t, p, sealed); !bytes.Equal(again.Payload, sealed.Payload) {
				t.Error("a sealed event was sealed again")
			}
			opened, err := p.Open(t.Context(), sealed)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(opened.Payload, ev.Payload) || !maps.Equal(opened.Headers, headers) {
				t.Errorf("opened: %q, %v", opened.Payload, opened.Headers)
			}
			if want := c.contents; opened.ContentType != want && (want != "" || opened.ContentType != waybill.JSON) {
				t.Errorf("the content type is %q, want %q", opened.ContentType, want)
			}
		})
	}
}

// TestKeyRotation: a new key encrypts, the old one still opens, and a key that
// is missing is no reason to give up at once.
func TestKeyRotation(t *testing.T) {
	old, both, only := encrypt(t, key("2025", 1)), encrypt(t, key("2026", 2), key("2025", 1)), encrypt(t, key("2026", 2))
	before, after := seal(t, pipeline(t, old), note(70)), seal(t, pipeline(t, both), note(70))
	if got := after.Headers[payload.HeaderEncoding]; got != "aes-256-gcm key=2026" {
		t.Errorf("the header is %q", got)
	}
	for _, ev := range []waybill.Event{before, after} {
		if _, err := pipeline(t, both).Open(t.Context(), ev); err != nil {
			t.Error(err)
		}
	}
	_, err := pipeline(t, only).Open(t.Context(), before)
	if class, _ := waybill.Classify(err); class != waybill.ClassRetry || !strings.Contains(err.Error(), `the key "2025" is not configured`) {
		t.Errorf("a missing key: %v, %v", class, err)
	}
	// The same id with another secret.
	_, err = pipeline(t, encrypt(t, key("2025", 3))).Open(t.Context(), before)
	if class, _ := waybill.Classify(err); class != waybill.ClassPermanent {
		t.Errorf("another secret: %v, %v", class, err)
	}
}

// TestBoundToItsEvent: an encrypted payload opens in its event only, and only
// unchanged.
func TestBoundToItsEvent(t *testing.T) {
	p := pipeline(t, encrypt(t, key("k", 1)))
	sealed := seal(t, p, note(70))
	for name, change := range map[string]func(*waybill.Event){
		"another event":  func(ev *waybill.Event) { ev.ID = waybill.NewID() },
		"another type":   func(ev *waybill.Event) { ev.Type = "NoteLost" },
		"another tenant": func(ev *waybill.Event) { ev.TenantID = "other" },
		"another bit":    func(ev *waybill.Event) { ev.Payload = bytes.Clone(ev.Payload); ev.Payload[20] ^= 1 },
		"cut":            func(ev *waybill.Event) { ev.Payload = ev.Payload[:5] },
	} {
		moved := sealed
		change(&moved)
		_, err := p.Open(t.Context(), moved)
		if class, _ := waybill.Classify(err); class != waybill.ClassPermanent {
			t.Errorf("%s: %v, want a permanent error", name, err)
		}
	}
	if again := seal(t, p, note(70)); bytes.Equal(again.Payload, sealed.Payload) {
		t.Error("two events have the same ciphertext")
	}
}

// failing is a bucket that fails.
type failing struct{ err error }

func (f failing) Put(context.Context, string, []byte) error   { return f.err }
func (f failing) Get(context.Context, string) ([]byte, error) { return nil, f.err }

// TestClaimCheck: a blob that is gone or changed ends the event with a clear
// error, an unavailable bucket spends no attempt, and a bucket that fails fails
// the write.
func TestClaimCheck(t *testing.T) {
	dir := t.TempDir()
	p := pipeline(t, payload.ClaimCheck(payload.Folder(dir), 100))
	sealed := seal(t, p, note(700))
	if len(sealed.Payload) != 0 {
		t.Errorf("%d bytes stay in the event", len(sealed.Payload))
	}
	files, err := filepath.Glob(filepath.Join(dir, sealed.ID.Time().UTC().Format("2006-01-02"), sealed.ID.String()+"-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the blobs are %v, %v", files, err)
	}
	file := files[0]
	if got := seal(t, p, note(95)); len(got.Payload) == 0 {
		t.Error("a small payload went to the bucket")
	}

	if err := os.WriteFile(file, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = p.Open(t.Context(), sealed)
	if class, _ := waybill.Classify(err); class != waybill.ClassPermanent || !strings.Contains(err.Error(), "differs from the payload") {
		t.Errorf("a changed blob: %v, %v", class, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, err = p.Open(t.Context(), sealed)
	if class, _ := waybill.Classify(err); class != waybill.ClassPermanent || !errors.Is(err, payload.ErrGone) || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("a lost blob: %v, %v", class, err)
	}

	down := errors.New("connection refused")
	broken := pipeline(t, payload.ClaimCheck(failing{down}, 100))
	if _, err := broken.Seal(t.Context(), note(700)); !errors.Is(err, down) {
		t.Errorf("a write without the bucket: %v", err)
	}
	_, err = broken.Open(t.Context(), sealed)
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("an unavailable bucket: %v, %v", class, err)
	}
	for _, outside := range []string{"../x", "/etc/passwd", ""} {
		if _, err := payload.Folder(dir).Get(t.Context(), outside); err == nil || errors.Is(err, payload.ErrGone) {
			t.Errorf("the key %q: %v", outside, err)
		}
	}
}

// TestWrittenAgain: an event that is written again with the same id, as after a
// commit with an unknown outcome, does not change the blob of the first write.
// Encryption gives the second write other data.
func TestWrittenAgain(t *testing.T) {
	p := pipeline(t, encrypt(t, key("k1", 1)), payload.ClaimCheck(payload.Folder(t.TempDir()), 100))
	ev := note(700)
	committed := seal(t, p, ev)
	seal(t, p, ev)
	opened, err := p.Open(t.Context(), committed)
	if err != nil || !bytes.Equal(opened.Payload, ev.Payload) {
		t.Errorf("after the second write: %v", err)
	}
}

// TestInvalid: a broken header, an unknown transform and a payload that is not
// JSON have clear errors.
func TestInvalid(t *testing.T) {
	p := pipeline(t, payload.Gzip(0))
	ev := seal(t, p, note(700))
	for header, want := range map[string]struct {
		class waybill.Class
		text  string
	}{
		"":               {waybill.ClassPermanent, "an entry is empty"},
		"gzip, lz4":      {waybill.ClassRetry, `no transform "lz4"`},
		"gzip broken":    {waybill.ClassPermanent, `"broken" is not key=value`},
		"gzip, gzip":     {waybill.ClassPermanent, "gzip"},
		"gzip key=%zz":   {waybill.ClassPermanent, "invalid URL escape"},
		"gzip,gzip,gzip": {waybill.ClassPermanent, "gzip"},
	} {
		changed := ev
		changed.Headers = map[string]string{payload.HeaderEncoding: header}
		_, err := p.Open(t.Context(), changed)
		if class, _ := waybill.Classify(err); class != want.class || !strings.Contains(fmt.Sprint(err), want.text) {
			t.Errorf("header %q: %v, %v", header, class, err)
		}
	}
	bad := note(70)
	bad.Payload = []byte("{")
	var field *waybill.FieldError
	if _, err := p.Seal(t.Context(), bad); !errors.As(err, &field) || field.Field != "Payload" {
		t.Errorf("a payload that is not JSON: %v", err)
	}
	for name, list := range map[string][]payload.Transform{"nil": {nil}, "twice": {payload.Gzip(1), payload.Gzip(2)}} {
		if _, err := payload.New(list...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, keys := range [][]payload.Key{{{ID: "a"}}, {key("", 1)}, {key("a", 1), key("a", 2)}, {{ID: "a", Secret: make([]byte, 16)}}} {
		if _, err := payload.Encrypt(keys[0], keys[1:]...); err == nil {
			t.Errorf("keys %v: no error", keys)
		}
	}
}

// TestThroughOutbox: the outbox and the relay's sinks hold the sealed payload;
// the handlers of a mux and of a group, and a sink that Sink wraps, receive the
// plain one.
func TestThroughOutbox(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := pipeline(t, payload.Gzip(100), encrypt(t, key("k", 1)))
	box, err := outbox.New(db, outbox.Config{Hooks: []outbox.Hook{p.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	type arrival struct {
		at    string
		ev    waybill.Event // the argument
		inCtx waybill.Event // that of DeliveryFrom
	}
	arrivals := make(chan arrival, 10)
	arrive := func(ctx context.Context, at string, ev waybill.Event) {
		d, _ := waybill.DeliveryFrom(ctx)
		arrivals <- arrival{at, ev, d.Event}
	}
	mux := handler.NewMux()
	mux.Use(p.Middleware)
	mux.Fallback(func(ctx context.Context, ev waybill.Event) error { arrive(ctx, "mux", ev); return nil })
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("GROUP", inbox.Options{Open: p.Open})
	group.Handle("note", "NoteTaken", func(ctx context.Context, _ *memstore.Tx, ev waybill.Event) error {
		arrive(ctx, "group", ev)
		return nil
	})
	raw := func(at string) waybill.Sink {
		return relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error { arrive(ctx, at, d.Event); return nil })
	}
	r, err := relay.NewTo(db, relay.Config{},
		relay.Destination{Name: "mux", Sink: mux}, relay.Destination{Name: "group", Sink: group},
		relay.Destination{Name: "plain", Sink: p.Sink(raw("plain"))}, relay.Destination{Name: "sealed", Sink: raw("sealed")})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()

	ev := note(700)
	ev.AggregateType, ev.AggregateID = "note", "1"
	if err := box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) }); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		got := <-arrivals
		plain := bytes.Equal(got.ev.Payload, ev.Payload) && got.ev.Headers[payload.HeaderEncoding] == "" && got.ev.ContentType == waybill.JSON
		if plain != (got.at != "sealed") {
			t.Errorf("%s receives %q with the headers %v", got.at, got.ev.Payload, got.ev.Headers)
		}
		if !bytes.Equal(got.inCtx.Payload, got.ev.Payload) {
			t.Errorf("%s: the delivery in the context has another payload", got.at)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestSinkOfSome: events that cannot be opened fail, and the others of their
// batch are delivered with their own results.
func TestSinkOfSome(t *testing.T) {
	p := pipeline(t, encrypt(t, key("k", 1)))
	refused := errors.New("refused")
	var seen []waybill.ID
	next := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		seen = append(seen, d.ID)
		if len(seen) == 2 {
			return refused
		}
		return nil
	})
	batch := make([]waybill.Delivery, 4)
	for i := range batch {
		batch[i].Event = seal(t, p, note(70))
	}
	batch[1].Payload = nil
	results := p.Sink(next).Deliver(t.Context(), batch)
	if len(results) != 4 || results[0] != nil || results[1] == nil || !errors.Is(results[2], refused) || results[3] != nil {
		t.Errorf("the results are %v", results)
	}
	if len(seen) != 3 || seen[1] != batch[2].ID {
		t.Errorf("the sink saw %v", seen)
	}
	if results := p.Sink(next).Deliver(t.Context(), batch[1:2]); len(results) != 1 || results[0] == nil {
		t.Errorf("a batch without an event that opens: %v", results)
	}
}

// TestGroupOpensOnEveryPath: a handler that is called directly and one under a
// lease receive the plain payload. An event
// that does not open reaches no handler, and its error keeps its class.
func TestGroupOpensOnEveryPath(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := pipeline(t, encrypt(t, key("k", 1)))
	group := in.MustGroup("OPEN", inbox.Options{Open: p.Open})
	plain := note(70)
	sealed := seal(t, p, plain)
	if _, err := group.Consume(t.Context(), sealed, func(ctx context.Context, _ *memstore.Tx, ev waybill.Event) error {
		if d, _ := waybill.DeliveryFrom(ctx); !bytes.Equal(ev.Payload, plain.Payload) || !bytes.Equal(d.Payload, plain.Payload) {
			t.Errorf("the handler receives %q, and its context has %q", ev.Payload, d.Payload)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	leased := note(70)
	if _, err := group.ConsumeLeased(t.Context(), seal(t, p, leased), func(ctx context.Context, _ *inbox.Lease[*memstore.Tx]) error {
		if d, _ := waybill.DeliveryFrom(ctx); !bytes.Equal(d.Payload, leased.Payload) {
			t.Errorf("under a lease the context has %q", d.Payload)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}

	down := in.MustGroup("DOWN", inbox.Options{Open: func(context.Context, waybill.Event) (waybill.Event, error) {
		return waybill.Event{}, waybill.Unavailable(errors.New("the bucket is down"))
	}})
	handler := func(context.Context, *memstore.Tx, waybill.Event) error { t.Error("the handler runs"); return nil }
	_, err = down.Consume(t.Context(), sealed, handler)
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("an event that does not open: %v, %v", class, err)
	}
	_, err = down.ConsumeLeased(t.Context(), leased, func(context.Context, *inbox.Lease[*memstore.Tx]) error { t.Error("the handler runs"); return nil })
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("under a lease: %v, %v", class, err)
	}
}
