package idempotency

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/url"
	"slices"
	"strings"
)

// RequestContent is what an HTTP request asks for: everything that decides its meaning, and nothing that changes from one try to the next,
// such as hosts, credentials and trace headers.
type RequestContent struct {
	Method string
	// Operation is what the route is called, and Path the path that was asked for.
	Operation, Path string
	// Query is the query as it was sent.
	Query string
	// ContentType and ContentEncoding are the values of these headers.
	ContentType, ContentEncoding string
	Body                         []byte
	// Digest stands for a body that is too large to be read beforehand: what a trusted party says about it. Body is not looked at then.
	Digest string
}

// HashRequest returns the hash of an HTTP request. Two requests get the same one if they mean the same: the order of different names in the
// query and in forms does not matter, nor how JSON is written, nor the boundary of a multipart body. What cannot be read for certain is
// hashed byte by byte: two spellings of one request may then look different, two requests never look alike.
func HashRequest(r RequestContent) Hash {
	d := newDigest("request")
	d.text(r.Method)
	d.text(r.Operation)
	d.text(r.Path)
	d.pairs(r.Query)
	media, params := mediaType(r.ContentType)
	d.text(media)
	d.parameters(params, media)
	switch {
	case r.Digest != "":
		d.text("digest")
		d.text(r.ContentEncoding)
		d.text(r.Digest)
	case r.ContentEncoding != "":
		d.text("encoded")
		d.text(r.ContentEncoding)
		d.field(r.Body)
	case media == "application/json", strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json"):
		d.json(r.Body)
	case media == "application/x-www-form-urlencoded":
		d.pairs(string(r.Body))
	case strings.HasPrefix(media, "multipart/"):
		d.multipart(r.Body, params["boundary"])
	default:
		d.text("raw")
		d.field(r.Body)
	}
	return d.sum()
}

// mediaType returns the media type in lower case, and its parameters; what is none is returned as it is.
func mediaType(header string) (string, map[string]string) {
	media, params, err := mime.ParseMediaType(header)
	if err != nil {
		return header, nil
	}
	return media, params
}

// parameters adds those of a media type. The boundary is different each time; that JSON is UTF-8 needs no saying.
func (d digest) parameters(params map[string]string, media string) {
	params = maps.Clone(params)
	if strings.HasPrefix(media, "multipart/") {
		delete(params, "boundary")
	}
	if strings.HasSuffix(media, "json") && strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	d.number(len(params))
	for _, name := range slices.Sorted(maps.Keys(params)) {
		d.text(name)
		d.text(params[name])
	}
}

// pairs adds names and values of a query or a form, sorted by name; values of one name stay in their order.
func (d digest) pairs(encoded string) {
	ps, err := parsePairs(encoded)
	if err != nil {
		d.text("raw")
		d.text(encoded)
		return
	}
	d.text("pairs")
	d.number(len(ps))
	for _, p := range ps {
		d.text(p.name)
		d.text(p.value)
	}
}

type pair struct{ name, value string }

// parsePairs is url.ParseQuery, but it keeps the order of values across names that are alike, and the first error ends it.
func parsePairs(encoded string) ([]pair, error) {
	if strings.Contains(encoded, ";") {
		return nil, errors.New("a semicolon separates pairs for some and not for others")
	}
	var ps []pair
	for part := range strings.SplitSeq(encoded, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return nil, err
		}
		if value, err = url.QueryUnescape(value); err != nil {
			return nil, err
		}
		ps = append(ps, pair{name, value})
	}
	slices.SortStableFunc(ps, func(a, b pair) int { return cmp.Compare(a.name, b.name) })
	return ps, nil
}

// multipart adds the parts of a body, in their order, with their headers.
func (d digest) multipart(body []byte, boundary string) {
	parts, err := parseParts(body, boundary)
	if err != nil {
		d.text("raw")
		d.text(boundary)
		d.field(body)
		return
	}
	d.text("parts")
	d.number(len(parts))
	for _, p := range parts {
		d.number(len(p.header))
		for _, name := range slices.Sorted(maps.Keys(p.header)) {
			d.text(name)
			d.number(len(p.header[name]))
			for _, value := range p.header[name] {
				d.text(value)
			}
		}
		d.field(p.content)
	}
}

type part struct {
	header  map[string][]string
	content []byte
}

func parseParts(body []byte, boundary string) ([]part, error) {
	if boundary == "" {
		return nil, errors.New("no boundary")
	}
	// What stands before the first part and after the last is no part, but some handler may read it.
	end := bytes.LastIndex(body, []byte("--"+boundary+"--"))
	if !bytes.HasPrefix(body, []byte("--"+boundary)) || end < 0 || len(bytes.TrimSpace(body[end:])) != len(boundary)+4 {
		return nil, errors.New("not only parts")
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	var parts []part
	for {
		// Not NextPart: it decodes quoted-printable, and hides that it did.
		p, err := r.NextRawPart()
		if err == io.EOF { //nolint:errorlint // a body that is cut off wraps io.EOF; only the bare one is the end
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{p.Header, content})
	}
}
