package httpkey

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"
)

// errNoKey reports that the request has no header with a key.
var errNoKey = errors.New("no key")

// key returns the decoded key of a request. Its errors never contain the key.
func (c *Config) key(r *http.Request) (string, error) {
	lines := r.Header[c.Header]
	switch len(lines) {
	case 0:
		return "", errNoKey
	case 1:
	default:
		// Never guess which one is meant.
		return "", errors.New("the header occurs more than once")
	}
	key, err := c.parse(strings.Trim(lines[0], " "))
	if err != nil {
		return "", err
	}
	if len(key) < c.MinLen || len(key) > maxKey {
		return "", fmt.Errorf("the key must have %d to %d bytes", c.MinLen, maxKey)
	}
	return key, nil
}

// parse reads one line: a String of RFC 9651, whose parameters are ignored, or
// a bare word.
func (c *Config) parse(line string) (string, error) {
	if !c.Strict && !strings.HasPrefix(line, `"`) {
		return bare(line)
	}
	item, err := item(line)
	if err != nil {
		// The parser's error might contain the key.
		return "", errors.New("the key is not a valid string in double quotes (RFC 9651)")
	}
	key, ok := item.Value.(string)
	if !ok {
		return "", errors.New("the key must be in double quotes")
	}
	return key, nil
}

// item calls the parser, a third-party package that reads client input: if it
// panics, the key is invalid, and the server continues.
func item(line string) (out httpsfv.Item, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the parser panicked")
		}
	}()
	return httpsfv.UnmarshalItem([]string{line})
}

// bare reads a key without quotes: visible characters, and no comma, which
// would separate a list.
func bare(line string) (string, error) {
	for _, c := range []byte(line) {
		if c <= 0x20 || c >= 0x7f || c == ',' {
			return "", errors.New("a key without double quotes may contain only visible ASCII characters and no comma")
		}
	}
	return line, nil
}
