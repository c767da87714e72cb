package payload

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"

	"github.com/waybillhq/waybill"
)

// MaxOpened is the size above which an opened payload is rejected, in bytes: a
// small compressed payload must not fill the memory of a consumer.
const MaxOpened = 64 << 20

// Gzip compresses payloads of more than above bytes, unless the result is
// larger.
func Gzip(above int) Transform { return compression{above, MaxOpened} }

type compression struct{ above, limit int }

// Name returns "gzip".
func (compression) Name() string { return "gzip" }

// Seal compresses data.
func (c compression) Seal(_ context.Context, _ waybill.Event, data []byte) ([]byte, Params, bool, error) {
	if len(data) <= c.above || len(data) > c.limit {
		return nil, nil, false, nil
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, nil, false, err
	}
	if err := w.Close(); err != nil {
		return nil, nil, false, err
	}
	return out.Bytes(), nil, out.Len() < len(data), nil
}

// Open decompresses data. Data that is not what Seal returned is a permanent
// error.
func (c compression) Open(_ context.Context, _ waybill.Event, _ Params, sealed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(sealed))
	if err != nil {
		return nil, waybill.Permanent(err)
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(c.limit)+1))
	switch {
	case err != nil:
		return nil, waybill.Permanent(err)
	case len(data) > c.limit:
		return nil, waybill.Permanent(fmt.Errorf("the payload has more than %d bytes", c.limit))
	}
	return data, nil
}
