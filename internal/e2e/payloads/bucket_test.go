package payloads

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/memblob"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/payload"
)

// TestBucket: the adapter of docs/payloads.md keeps payloads in stores of
// gocloud.dev/blob, and a blob that is gone is known as such.
func TestBucket(t *testing.T) {
	text, err := os.ReadFile("bucket.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), docblock.Blocks(t, "docs/payloads.md", "go bucket")[0]) {
		t.Error("bucket.go differs from docs/payloads.md")
	}
	for _, url := range []string{"mem://", "file://" + filepath.ToSlash(t.TempDir()) + "?no_tmp_dir=true"} {
		opened, err := blob.OpenBucket(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = opened.Close() }()
		p, err := payload.New(payload.ClaimCheck(bucket{opened}, 100))
		if err != nil {
			t.Fatal(err)
		}
		ev := waybill.NewEvent("NoteTaken", strings.Repeat("text ", 500_000)) // more than the outbox takes
		ev.ID = waybill.NewID()
		sealed, err := p.Seal(t.Context(), ev)
		if err != nil {
			t.Fatal(err)
		}
		if err := sealed.Validate(); err != nil {
			t.Error(err)
		}
		if back, err := p.Open(t.Context(), sealed); err != nil || !bytes.Equal(back.Payload, ev.Payload) {
			t.Errorf("%s: %d of %d bytes, %v", url, len(back.Payload), len(ev.Payload), err)
		}
		if err := opened.Delete(t.Context(), blobOf(t, opened, ev)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Open(t.Context(), sealed); !errors.Is(err, payload.ErrGone) {
			t.Errorf("%s: a blob that is gone: %v", url, err)
		}
	}
}

// blobOf returns the key of the only blob of an event.
func blobOf(t *testing.T, in *blob.Bucket, ev waybill.Event) string {
	t.Helper()
	list, _, err := in.ListPage(t.Context(), blob.FirstPageToken, 2, &blob.ListOptions{
		Prefix: ev.ID.Time().UTC().Format("2006-01-02") + "/" + ev.ID.String() + "-",
	})
	if err != nil || len(list) != 1 {
		t.Fatalf("event %s has %d blobs, %v; want one", ev.ID, len(list), err)
	}
	return list[0].Key
}
