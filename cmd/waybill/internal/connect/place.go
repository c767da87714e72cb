// Package connect opens stores and sinks from URLs. Its errors contain no
// passwords: errors of parsers are omitted, because they quote the URL, and
// errors of servers are scrubbed.
package connect

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Errors of opening a store or a sink.
var (
	// ErrBadURL reports an invalid address.
	ErrBadURL = errors.New("invalid URL")
	// ErrBadSetting reports a name or a number that the store or the sink does
	// not accept.
	ErrBadSetting = errors.New("invalid setting")
	// ErrUnreachable reports that the server does not answer or refuses the
	// connection.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrNoTables reports that the store answers and all or some of its tables
	// are missing.
	ErrNoTables = errors.New("the tables are missing")
)

// badURL returns an error about an address. The text must not quote the
// address.
func badURL(setting, advice, format string, args ...any) error {
	return hint.New(advice, "%s: %w: %s", setting, ErrBadURL, fmt.Sprintf(format, args...))
}

// unreachable returns an error about a server that does not answer, without
// secrets.
func unreachable(setting string, address settings.Secret, advice string, err error) error {
	return hint.New(advice, "%s %s %w: %s", setting, address, ErrUnreachable, cleaned(address, err))
}

// cleaned returns an error's text on one line, without the address's secrets.
func cleaned(address settings.Secret, err error) string {
	return settings.NewScrubber(address).Clean(strings.Join(strings.Fields(err.Error()), " "))
}

// cleanError is an error whose text has no secrets. [errors.Is] still finds its
// cause.
type cleanError struct {
	err  error
	text string
}

func (e *cleanError) Error() string { return e.text }
func (e *cleanError) Unwrap() error { return e.err }

func clean(address settings.Secret, err error) error {
	if err == nil {
		return nil
	}
	return &cleanError{err, cleaned(address, err)}
}

// schemeLike matches a scheme that may be quoted: a text in its place could be
// a password.
var schemeLike = regexp.MustCompile(`^[a-z]{2,12}$`)

// parse parses a URL with one of the known schemes. The rest of a URL with an
// unknown scheme is not examined.
func parse(setting string, address settings.Secret, schemes []string) (*url.URL, error) {
	text := address.Reveal()
	advice := "use one of " + strings.Join(schemes, ", ") + "; waybill config shows the origin of the value"
	scheme, rest, found := strings.Cut(text, ":")
	if !found {
		return nil, badURL(setting, advice, "missing scheme")
	}
	if !slices.ContainsFunc(schemes, func(s string) bool { return strings.TrimRight(s, ":/") == scheme }) {
		if !strings.HasPrefix(rest, "//") || !schemeLike.MatchString(scheme) {
			return nil, badURL(setting, advice, "unknown scheme")
		}
		return nil, badURL(setting, advice, "unknown scheme %s", scheme)
	}
	if strings.Contains(rest, ","+scheme+"://") {
		return nil, badURL(setting, "list only the hosts: "+scheme+"://user:password@host1,host2", "several URLs")
	}
	u, _, err := settings.ParseURL(text)
	if err != nil { // err quotes the URL
		return nil, badURL(setting, "write "+scheme+"://user:password@host:port/name, with %40 for @ and %2F for / in the password",
			"malformed")
	}
	return u, nil
}
