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

// RequestContent is the content of an HTTP request that defines its meaning,
// without parts that change between tries, such as hosts, credentials and trace
// headers.
type RequestContent struct {
	Method string
	// Operation is the name of the route, and Path the requested path.
	Operation, Path string
	// Query is the raw query.
	Query string
	// ContentType and ContentEncoding are the values of these headers.
	ContentType, ContentEncoding string
	Body                         []byte
	// Digest replaces a body that is too large to be read in advance: a digest
	// of the body from a trusted source. Body is ignored then.
	Digest string
}

// HashRequest returns the hash of an HTTP request. Requests with the same
// meaning get the same hash: the order of different names in queries and forms
// does not matter, nor the formatting of JSON, nor the boundary of a multipart
// body. Content that cannot be parsed reliably is hashed byte by byte: two
// spellings of one request may then get different hashes, but two different
// requests never get the same one.
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

// mediaType returns the media type in lower case, and its parameters. An
// invalid header is returned unchanged.
func mediaType(header string) (string, map[string]string) {
	media, params, err := mime.ParseMediaType(header)
	if err != nil {
		return header, nil
	}
	return media, params
}

// parameters adds the parameters of a media type, except for the boundary,
// which differs each time, and the charset of JSON if it is UTF-8.
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

// pairs adds the names and values of a query or a form, sorted by name; values
// of the same name keep their order.
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

// parsePairs is like url.ParseQuery, but keeps the order of values of the same
// name, and stops at the first error.
func parsePairs(encoded string) ([]pair, error) {
	if strings.Contains(encoded, ";") {
		return nil, errors.New("ambiguous semicolon")
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

// multipart adds the parts of a body, in order, with their headers.
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
	// Content before the first part and after the last belongs to no part, but
	// a handler may read it.
	end := bytes.LastIndex(body, []byte("--"+boundary+"--"))
	if !bytes.HasPrefix(body, []byte("--"+boundary)) || end < 0 || len(bytes.TrimSpace(body[end:])) != len(boundary)+4 {
		return nil, errors.New("data outside of the parts")
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	var parts []part
	for {
		// Not NextPart, which decodes quoted-printable and hides that it did.
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
