// Package connect opens stores and sinks from URLs. No error of it contains a password: what parsers say about a URL is left out, because they
// quote it, and what servers say is scrubbed.
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

// What can be wrong with a place.
var (
	// ErrBadURL says that nothing can be opened at such an address.
	ErrBadURL = errors.New("the URL is wrong")
	// ErrBadSetting says that a store does not take the names or numbers it was given.
	ErrBadSetting = errors.New("a setting is wrong")
	// ErrUnreachable says that nobody answers there, or refuses to talk.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrNoTables says that the store answers and has no tables, or not all.
	ErrNoTables = errors.New("the tables are missing")
)

// badURL returns an error about an address. The text must not quote it.
func badURL(setting, advice, format string, args ...any) error {
	return hint.New(advice, "%s: %w: %s", setting, ErrBadURL, fmt.Sprintf(format, args...))
}

// unreachable returns an error about a server that does not answer, without what must not be seen.
func unreachable(setting string, address settings.Secret, advice string, err error) error {
	return hint.New(advice, "%s %s %w: %s", setting, address, ErrUnreachable, cleaned(address, err))
}

// cleaned returns an error's text on one line, without the address's secrets.
func cleaned(address settings.Secret, err error) string {
	return settings.NewScrubber(address).Clean(strings.Join(strings.Fields(err.Error()), " "))
}

// cleanError is an error whose text has no secrets. What it is about can still be asked with [errors.Is].
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

// schemeLike is what a scheme looks like that may be quoted: what stands in its place could be a password.
var schemeLike = regexp.MustCompile(`^[a-z]{2,12}$`)

// parse reads a URL. It says which of the known schemes it has; what is behind an unknown one is not looked at.
func parse(setting string, address settings.Secret, schemes []string) (*url.URL, error) {
	text := address.Reveal()
	advice := "it starts with one of " + strings.Join(schemes, ", ") + "; waybill config says where it came from"
	scheme, rest, found := strings.Cut(text, ":")
	if !found {
		return nil, badURL(setting, advice, "it has no scheme")
	}
	if !slices.ContainsFunc(schemes, func(s string) bool { return strings.TrimRight(s, ":/") == scheme }) {
		if !strings.HasPrefix(rest, "//") || !schemeLike.MatchString(scheme) {
			return nil, badURL(setting, advice, "it has no scheme that is known")
		}
		return nil, badURL(setting, advice, "%s is no scheme that is known", scheme)
	}
	if strings.Contains(rest, ","+scheme+"://") {
		return nil, badURL(setting, "name the hosts only: "+scheme+"://user:password@host1,host2", "it is several URLs")
	}
	u, _, err := settings.ParseURL(text)
	if err != nil { // the error quotes the URL
		return nil, badURL(setting, "write "+scheme+"://user:password@host:port/name, with %40 for @ and %2F for / in the password",
			"it cannot be read")
	}
	return u, nil
}
