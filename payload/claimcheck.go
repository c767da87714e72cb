package payload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/waybillhq/waybill"
)

// ErrGone is returned by [Bucket.Get] for a key that does not exist.
var ErrGone = errors.New("payload: the blob is gone")

// Bucket is the part of a blob store that [ClaimCheck] uses. It must be safe
// for concurrent use.
type Bucket interface {
	// Put stores data under key. Storing the same data twice is the same as
	// once.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns the data, or an error that wraps [ErrGone].
	Get(ctx context.Context, key string) ([]byte, error)
}

// ClaimCheck stores payloads of more than above bytes in a bucket; the event
// carries the blob's key and its SHA-256. Put it last, so that the blob is
// compressed and encrypted.
//
// The key is DATE/ID-HASH, with the UTC date of the event's id and the begin of
// the SHA-256: another write of the same event, which a retry makes and
// encryption changes, has a blob of its own. The blob is stored before the
// transaction commits: a rollback leaves it behind. Let the bucket expire blobs
// after the history's retention.
func ClaimCheck(b Bucket, above int) Transform { return claimCheck{b, above} }

type claimCheck struct {
	bucket Bucket
	above  int
}

// Name returns "claim-check".
func (claimCheck) Name() string { return "claim-check" }

// Seal stores data in the bucket. The remaining payload is empty.
func (c claimCheck) Seal(ctx context.Context, ev waybill.Event, data []byte) ([]byte, Params, bool, error) {
	if len(data) <= c.above {
		return nil, nil, false, nil
	}
	if len(data) > MaxOpened {
		return nil, nil, false, fmt.Errorf("the payload has %d bytes, and the limit is %d", len(data), MaxOpened)
	}
	hash := sha256.Sum256(data)
	sum := hex.EncodeToString(hash[:])
	key := ev.ID.Time().UTC().Format("2006-01-02") + "/" + ev.ID.String() + "-" + sum[:16]
	if err := c.bucket.Put(ctx, key, data); err != nil {
		return nil, nil, false, fmt.Errorf("store the blob %s: %w", key, err)
	}
	return []byte{}, Params{"blob": key, "sha256": sum, "size": strconv.Itoa(len(data))}, true, nil
}

// Open reads the blob. A blob that is gone or that has other content is a
// permanent error; any other error of the bucket means that it is unavailable.
func (c claimCheck) Open(ctx context.Context, _ waybill.Event, params Params, _ []byte) ([]byte, error) {
	key := params["blob"]
	data, err := c.bucket.Get(ctx, key)
	switch {
	case errors.Is(err, ErrGone):
		return nil, waybill.Permanent(fmt.Errorf("the blob %q with the payload (%s bytes) is gone from the bucket: restore it, then replay the event: %w", key, params["size"], err))
	case err != nil:
		return nil, waybill.Unavailable(fmt.Errorf("read the blob %q: %w", key, err))
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != params["sha256"] {
		return nil, waybill.Permanent(fmt.Errorf("the content of the blob %q differs from the payload", key))
	}
	return data, nil
}

// Folder is a [Bucket] in a folder of the file system.
func Folder(dir string) Bucket { return folder(dir) }

type folder string

// Put writes the file, syncs it and moves it to its place.
func (f folder) Put(_ context.Context, key string, data []byte) (err error) {
	path, err := f.path(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name())
		}
	}()
	if _, err = bytes.NewReader(data).WriteTo(temporary); err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err = os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// Get reads the file.
func (f folder) Get(_ context.Context, key string) ([]byte, error) {
	path, err := f.path(key)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrGone, path)
	}
	return data, err
}

// path returns the file of a key. Keys come with events, so one that leads out
// of the folder is an error.
func (f folder) path(key string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(key)) {
		return "", waybill.Permanent(fmt.Errorf("payload: the key %q leads out of the folder", key))
	}
	return filepath.Join(string(f), filepath.FromSlash(key)), nil
}

// syncFolder makes a rename durable, where the system can.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	_ = d.Sync() // Windows cannot sync a folder
	return d.Close()
}
