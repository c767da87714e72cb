package driver

import (
	"errors"
	"net/url"
	"strings"

	"github.com/waybillhq/waybill"
)

// Redact returns a broker URL, or several separated by commas, in a form that
// is safe to show: scheme, user, host and path. Passwords and the query are
// omitted. A URL that cannot be parsed is omitted completely.
func Redact(urls string) string {
	parts := strings.Split(urls, ",")
	for _, part := range parts {
		if strings.Contains(urls, "@") && !strings.Contains(part, "://") {
			// A password may contain a comma; then the parts are not what they
			// look like.
			return unreadable
		}
	}
	for i, part := range parts {
		parts[i] = redactOne(strings.TrimSpace(part))
	}
	return strings.Join(parts, ",")
}

const unreadable = "(unreadable URL)"

func redactOne(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" && u.Opaque != "" {
		return unreadable
	}
	if u.Host == "" && strings.Contains(text, "@") {
		return unreadable
	}
	if u.User != nil {
		name := u.User.Username()
		if _, has := u.User.Password(); !has {
			name = "…" // the user name may be a token
		}
		u.User = url.User(name)
	}
	u.RawQuery, u.Fragment = "", ""
	text = u.String()
	return strings.Replace(text, url.User("…").String()+"@", "…@", 1)
}

// RedactError returns an error that shows no secret of the URLs: passwords,
// tokens and query values are replaced in its text. The error matches the same
// targets as err with errors.Is, and cannot be unwrapped, because a wrapped
// error may show the secrets. The class of err is kept. RedactError(nil, …) is
// nil.
func RedactError(err error, urls string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range secrets(urls) {
		text = strings.ReplaceAll(text, secret, "…")
	}
	shown := error(&hidden{text: text, err: err})
	switch class, delay := waybill.Classify(err); class {
	case waybill.ClassPermanent:
		return waybill.Permanent(shown)
	case waybill.ClassUnavailable:
		return waybill.Unavailable(shown)
	case waybill.ClassDefer:
		return waybill.Later(delay, shown)
	case waybill.ClassRetry:
		if delay > 0 {
			return waybill.RetryAfter(delay, shown)
		}
	case waybill.ClassDone:
	}
	return shown
}

type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }

// TooManyRequests reports whether the destination asks for fewer events.
func (h *hidden) TooManyRequests() bool {
	var e interface{ TooManyRequests() bool }
	return errors.As(h.err, &e) && e.TooManyRequests()
}

func (h *hidden) Is(target error) bool { return errors.Is(h.err, target) }

// secrets returns every part of the URLs that must not be shown.
func secrets(urls string) []string {
	var found []string
	add := func(s string) {
		if s == "" {
			return
		}
		found = append(found, s, url.QueryEscape(s), url.PathEscape(s))
	}
	// The whole text as well as its parts: a password may contain a comma.
	for _, part := range append(strings.Split(urls, ","), urls) {
		part = strings.TrimSpace(part)
		add(passwordIn(part))
		u, err := url.Parse(part)
		if err != nil {
			continue
		}
		if password, ok := u.User.Password(); ok {
			add(password)
		} else if u.User != nil {
			add(u.User.Username())
		}
		for _, v := range queryValues(u) {
			add(v)
		}
	}
	return found
}

// passwordIn returns the password of a URL, or the user without a password. It
// does not need the URL parser, which rejects some URLs: their passwords must
// not be shown either.
func passwordIn(text string) string {
	_, rest, _ := strings.Cut(text, "://")
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return ""
	}
	if _, password, ok := strings.Cut(rest[:at], ":"); ok {
		return password
	}
	return rest[:at]
}

// queryValues returns the values of a URL's query that may be secrets. The
// names of files stay readable, for the operator. Values such as "true" and "1"
// are not secrets, and occur in any text.
func queryValues(u *url.URL) []string {
	var out []string
	for name, values := range u.Query() {
		if isFile(name) {
			continue
		}
		for _, v := range values {
			if len(v) >= 6 {
				out = append(out, v)
			}
		}
	}
	return out
}
