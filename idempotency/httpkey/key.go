package httpkey

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"
)

// errNoKey says that there is no header with a key.
var errNoKey = errors.New("there is no key")

// key returns the key of a request, decoded. Its errors never repeat the key.
func (c *Config) key(r *http.Request) (string, error) {
	lines := r.Header[c.Header]
	switch len(lines) {
	case 0:
		return "", errNoKey
	case 1:
	default:
		return "", errors.New("the header is there more than once") // never guess which one is meant
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

// parse reads one line: a String of RFC 9651, whose parameters mean nothing to us, or a bare word.
func (c *Config) parse(line string) (string, error) {
	if !c.Strict && !strings.HasPrefix(line, `"`) {
		return bare(line)
	}
	item, err := item(line)
	if err != nil {
		return "", errors.New("the key is not a string in double quotes, as RFC 9651 has it") // the parser's error might repeat it
	}
	key, ok := item.Value.(string)
	if !ok {
		return "", errors.New("the key must be in double quotes")
	}
	return key, nil
}

// item calls the parser. The line is a client's, and the parser another project's: if it panics, the key is wrong, and the server goes on.
func item(line string) (out httpsfv.Item, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the parser panicked")
		}
	}()
	return httpsfv.UnmarshalItem([]string{line})
}

// bare reads a key without quotes: visible characters. A comma would be a list.
func bare(line string) (string, error) {
	for _, c := range []byte(line) {
		if c <= 0x20 || c >= 0x7f || c == ',' {
			return "", errors.New("a key without double quotes may have only visible ASCII characters, and no comma")
		}
	}
	return line, nil
}
