package settings

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// hidden is what stands where a secret was.
const hidden = "xxxxx"

// Secret is a text that must not be seen: a token, or a URL with a password in it. However it is printed, logged or encoded, a URL shows
// what is harmless of it, and anything else shows nothing. Only [Secret.Reveal] tells.
type Secret struct{ text string }

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text, for whoever must hand it to a server. Errors that such a server, or a parser, makes of it may contain it.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether there is no text.
func (s Secret) IsZero() bool { return s.text == "" }

// String returns what may be seen.
func (s Secret) String() string { return redact(s.text) }

// GoString returns what may be seen.
func (s Secret) GoString() string { return fmt.Sprintf("settings.Secret(%q)", redact(s.text)) }

// Format prints what may be seen, with every verb: without it, %d would print the fields.
func (s Secret) Format(f fmt.State, verb rune) {
	switch {
	case verb == 'q':
		_, _ = fmt.Fprintf(f, "%q", s.String())
	case verb == 'v' && f.Flag('#'):
		_, _ = io.WriteString(f, s.GoString())
	default:
		_, _ = io.WriteString(f, s.String())
	}
}

// LogValue returns what may be logged.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns what may be seen. It serves JSON as well.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns what may be seen.
func (s Secret) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", s.String()), nil }

// MarshalYAML returns what may be seen.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// plainForm recognises URLs without "//" that name files and the like, and hold no password.
var plainForm = regexp.MustCompile(`^(sqlite:[^@]*|log:(payload)?|nats:embedded(\?(dir|listen)=[^@&]*(&(dir|listen)=[^@&]*)?)?)$`)

// harmless recognises parameters whose values may be shown. All others may not: nobody knows every client's.
var harmless = regexp.MustCompile(`^(sslmode|sslrootcert|application_name|connect_timeout|search_path|target_session_attrs|pool_[a-z_]+|` +
	`socket|tls|timeout|readTimeout|writeTimeout|charset|collation|parseTime|loc|create|declare|queues|existing)$`)

var schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)

// redact returns a URL without what must not be seen, or nothing of what is no URL.
func redact(text string) string {
	if text == "" {
		return ""
	}
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || !schemeForm.MatchString(scheme) {
		return hidden
	}
	if !strings.HasPrefix(rest, "//") {
		if plainForm.MatchString(text) {
			return text
		}
		return scheme + ":" + hidden
	}
	var shown []string
	for _, one := range splitURLs(text) {
		u, hosts, err := ParseURL(one)
		if err != nil {
			return scheme + "://" + hidden
		}
		u.Host = hosts
		shown = append(shown, redactURL(u))
	}
	return strings.Join(shown, ",")
}

// splitURLs takes a list of URLs with commas between them apart: some servers are a cluster.
func splitURLs(text string) []string {
	scheme, _, _ := strings.Cut(text, ":")
	mark := "," + scheme + "://"
	parts := strings.Split(text, mark)
	for i := range parts[1:] {
		parts[i+1] = mark[1:] + parts[i+1]
	}
	return parts
}

// ParseURL reads a URL, also one that names several hosts with commas between them, which it returns; the URL has the first. Its error may
// quote the URL: do not show it.
func ParseURL(text string) (u *url.URL, hosts string, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		u, err = url.Parse(text)
		return u, "", err
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	authority, tail := rest[:end], rest[end:]
	user := ""
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, authority = authority[:i+1], authority[i+1:]
	}
	first, others, _ := strings.Cut(authority, ",")
	if u, err = url.Parse(scheme + "://" + user + first + tail); err != nil {
		return nil, "", err
	}
	for host := range strings.SplitSeq(others, ",") { // each must be one
		if _, err := url.Parse("x://" + host); err != nil {
			return nil, "", err
		}
	}
	return u, authority, nil
}

func redactURL(u *url.URL) string {
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	if u.User != nil {
		name := url.User(u.User.Username()).String()
		switch _, has := u.User.Password(); {
		case has && name != "":
			b.WriteString(name + ":" + hidden + "@")
		case !has && !tokenName(u.Scheme):
			b.WriteString(name + "@")
		default:
			b.WriteString(hidden + "@")
		}
	}
	b.WriteString(u.Host)
	web := u.Scheme == "http" || u.Scheme == "https"
	switch {
	case web && strings.Trim(u.Path, "/") != "": // the path of a webhook is often all that protects it
		b.WriteString("/" + hidden)
	default:
		b.WriteString(u.EscapedPath())
	}
	if u.RawQuery != "" {
		b.WriteString("?" + redactQuery(u.RawQuery, web))
	}
	if u.Fragment != "" {
		b.WriteString("#" + hidden)
	}
	return b.String()
}

// tokenName reports whether a name without a password may be a token: databases and most brokers
// know a name as a name.
func tokenName(scheme string) bool {
	switch scheme {
	case "postgres", "postgresql", "mysql", "amqp", "amqps", "redis", "rediss", "kafka":
		return false
	}
	return true
}

func redactQuery(query string, all bool) string {
	parts := strings.Split(query, "&")
	for i, part := range parts {
		name, _, has := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err != nil || all || !harmless.MatchString(plain) || !has {
			parts[i] = name + "=" + hidden
			if !has || err != nil {
				parts[i] = hidden
			}
		}
	}
	return strings.Join(parts, "&")
}

// shortest is how long a piece of a secret is at least that is looked for in texts: shorter ones are parts of ordinary words.
const shortest = 4

// pieces returns what of a secret could turn up in somebody else's words.
func (s Secret) pieces() []string {
	var out []string
	add := func(texts ...string) {
		for _, text := range texts {
			if len(text) >= shortest && !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	if s.text == redact(s.text) { // there is nothing to hide
		return nil
	}
	for _, one := range splitURLs(s.text) {
		add(urlPieces(one)...)
	}
	return out
}

// urlPieces returns what of a URL must not be seen; of one that cannot be read, all of it and each part.
func urlPieces(text string) []string {
	u, _, err := ParseURL(text)
	if err != nil || u.Host == "" && u.User == nil {
		_, rest, _ := strings.Cut(text, ":")
		out := []string{strings.TrimPrefix(rest, "//")}
		return append(out, strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune("/:@?&=#", r) })...)
	}
	var out []string
	if u.User != nil {
		if password, has := u.User.Password(); has {
			_, raw, _ := strings.Cut(u.User.String(), ":")
			out = append(out, password, raw, url.QueryEscape(password))
		} else if tokenName(u.Scheme) {
			out = append(out, u.User.Username(), u.User.String())
		}
	}
	if web := u.Scheme == "http" || u.Scheme == "https"; web && strings.Trim(u.Path, "/") != "" {
		out = append(out, u.Path, u.EscapedPath(), u.RawQuery)
		out = append(out, strings.Split(u.Path, "/")...)
		for part := range strings.SplitSeq(u.RawQuery, "&") {
			name, value, _ := strings.Cut(part, "=")
			if out = append(out, value); strings.Trim(value, "=") == "" {
				out = append(out, name) // a token, perhaps; a name with a value is shown
			}
		}
	}
	for name, values := range u.Query() {
		if !harmless.MatchString(name) {
			for _, value := range values {
				out = append(out, value, url.QueryEscape(value))
			}
		}
	}
	return append(out, u.Fragment)
}

// words returns what of a URL may be seen: scheme, name, host, path. A password that is one of
// them, or a part of one, cannot be told from it by its text.
func (s Secret) words() []string {
	var out []string
	for _, one := range splitURLs(s.text) {
		u, hosts, err := ParseURL(one)
		if err != nil || u.Host == "" && u.User == nil {
			continue
		}
		out = append(out, u.Scheme, hosts)
		if u.User != nil && u.User.Username() != "" {
			if _, has := u.User.Password(); has || !tokenName(u.Scheme) {
				out = append(out, u.User.Username())
			}
		}
		if u.Scheme != "http" && u.Scheme != "https" {
			out = append(out, strings.Trim(u.Path, "/"))
		}
	}
	return out
}

// Scrubber takes secrets out of texts that others wrote: a driver's error, a log line. It is the second wall; the first is not to put
// them there. Whatever stands in the place of a password is taken out, in any URL; and where they
// stand alone, the secrets that it knows, unless one of them is also an ordinary word of its URL.
type Scrubber struct{ replacer *strings.Replacer }

// NewScrubber returns a scrubber for some secrets.
func NewScrubber(secrets ...Secret) *Scrubber {
	type pair struct{ text, shown string }
	var pairs []pair
	var words []string
	for _, s := range secrets {
		words = append(words, s.words()...)
	}
	for _, s := range secrets {
		if shown := redact(s.text); shown != s.text && len(s.text) >= shortest {
			pairs = append(pairs, pair{s.text, shown})
		}
		for _, piece := range s.pieces() {
			if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(word, piece) }) {
				pairs = append(pairs, pair{piece, hidden})
			}
		}
	}
	// The longest first: a whole URL goes before the password in it.
	slices.SortStableFunc(pairs, func(a, b pair) int { return len(b.text) - len(a.text) })
	var flat []string
	for _, p := range pairs {
		flat = append(flat, p.text, p.shown)
	}
	return &Scrubber{strings.NewReplacer(flat...)}
}

// Places of passwords in any text.
var (
	// passwordInURL: what is between the name and the last @ of a word that is a URL.
	passwordInURL = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/?#@"']*):[^\s"']*@`)
	// tokenInURL: a name alone, where servers take tokens for names.
	tokenInURL = regexp.MustCompile(`((?:nats|tls|https?|pulsar(?:\+ssl)?)://)[^\s:/?#@"']+@`)
	// passwordInDSN: as MySQL's driver writes it.
	passwordInDSN = regexp.MustCompile(`([^\s:/@"'(]+):[^\s"']+@(tcp|unix)\(`)
	// namedPassword: in a query, or as libpq writes it.
	namedPassword = regexp.MustCompile(`(?i)\b(password|passwd|pwd|token|secret)=[^\s&"']+`)
)

// mask takes out what stands in the place of a password.
func mask(text string) string {
	if !strings.ContainsAny(text, "@=") {
		return text
	}
	text = passwordInURL.ReplaceAllString(text, "$1:"+hidden+"@")
	text = tokenInURL.ReplaceAllString(text, "${1}"+hidden+"@")
	text = passwordInDSN.ReplaceAllString(text, "$1:"+hidden+"@$2(")
	return namedPassword.ReplaceAllString(text, "$1="+hidden)
}

// Clean returns a text without the secrets.
func (s *Scrubber) Clean(text string) string {
	if s != nil {
		text = s.replacer.Replace(text)
	}
	return mask(text)
}
