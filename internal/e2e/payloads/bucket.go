package payloads

import (
	"context"
	"fmt"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/waybillhq/waybill/payload"
)

// bucket makes a *blob.Bucket a payload.Bucket.
type bucket struct{ *blob.Bucket }

func (b bucket) Put(ctx context.Context, key string, data []byte) error {
	return b.WriteAll(ctx, key, data, nil)
}

func (b bucket) Get(ctx context.Context, key string) ([]byte, error) {
	data, err := b.ReadAll(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		// Without the bucket itself, no blob is known to be gone.
		if found, _ := b.IsAccessible(ctx); found {
			return nil, fmt.Errorf("%w: %w", payload.ErrGone, err)
		}
	}
	return data, err
}
