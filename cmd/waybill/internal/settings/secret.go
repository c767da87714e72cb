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

// hidden replaces a secret in output.
const hidden = "xxxxx"

// Secret is a text that must not be shown: a token, or a URL with a password.
// Printing, logging and encoding show the harmless parts of a URL, and nothing
// of any other text. Only [Secret.Reveal] returns the text.
type Secret struct{ text string }

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text, for passing it to a server. Errors of the server or
// of a parser may contain the text.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether the text is empty.
func (s Secret) IsZero() bool { return s.text == "" }

// String returns the redacted text.
func (s Secret) String() string { return redact(s.text) }

// GoString returns the redacted text.
func (s Secret) GoString() string { return fmt.Sprintf("settings.Secret(%q)", redact(s.text)) }

// Format prints the redacted text with every verb; without this method, %d
// would print the fields.
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

// LogValue returns the redacted text.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns the redacted text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns the redacted text.
func (s Secret) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", s.String()), nil }

// MarshalYAML returns the redacted text.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// plainForm matches URLs without "//" that name files and the like, and hold no
// password.
var plainForm = regexp.MustCompile(`^(sqlite:[^@]*|log:(payload)?|nats:embedded(\?(dir|listen)=[^@&]*(&(dir|listen)=[^@&]*)?)?)$`)

// harmless matches parameters whose values may be shown. All others are hidden,
// because the parameters of the clients are not all known.
var harmless = regexp.MustCompile(`^(sslmode|sslrootcert|application_name|connect_timeout|search_path|target_session_attrs|pool_[a-z_]+|` +
	`socket|tls|ca|insecure|timeout|readTimeout|writeTimeout|charset|collation|parseTime|loc|create|queues|existing|replicas|sentinel|cluster)$`)

var schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)

// redact returns a URL without its secret parts, or a placeholder for a text
// that is no URL.
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

// splitURLs splits a comma-separated list of URLs, which some clients take for
// a cluster.
func splitURLs(text string) []string {
	scheme, _, _ := strings.Cut(text, ":")
	mark := "," + scheme + "://"
	parts := strings.Split(text, mark)
	for i := range parts[1:] {
		parts[i+1] = mark[1:] + parts[i+1]
	}
	return parts
}

// ParseURL parses a URL that may have several comma-separated hosts. It returns
// the URL with the first host, and all hosts. The error may quote the URL and
// must not be shown.
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
	for host := range strings.SplitSeq(others, ",") { // each must be a valid host
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
	case web && strings.Trim(u.Path, "/") != "": // the path of a webhook is often its only protection
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

// tokenName reports whether a user name without a password may be a token.
// Databases and most brokers take it as a plain user name.
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

// minPiece is the minimum length of a part of a secret that is searched for in
// texts: shorter parts occur in ordinary words.
const minPiece = 4

// pieces returns the parts of a secret that may occur in texts of other
// programs.
func (s Secret) pieces() []string {
	var out []string
	add := func(texts ...string) {
		for _, text := range texts {
			if len(text) >= minPiece && !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	if s.text == redact(s.text) { // nothing is secret
		return nil
	}
	for _, one := range splitURLs(s.text) {
		add(urlPieces(one)...)
	}
	return out
}

// urlPieces returns the secret parts of a URL. If the URL cannot be parsed, it
// returns the whole text and all its parts.
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
		out = append(out, webPieces(u)...)
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

// webPieces returns the parts of the path and the query of a web address. Any
// of them may be a token.
func webPieces(u *url.URL) []string {
	out := append([]string{u.Path, u.EscapedPath(), u.RawQuery}, strings.Split(u.Path, "/")...)
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, _ := strings.Cut(part, "=")
		if out = append(out, value); strings.Trim(value, "=") == "" {
			out = append(out, name) // possibly a token; a name with a value is shown
		}
	}
	return out
}

// words returns the harmless parts of a URL: scheme, user name, host, path. A
// password with the same text as one of them, or contained in one, cannot be
// distinguished from it.
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

// Scrubber removes secrets from texts that other programs wrote: a driver's
// error, a log line. It is the second line of defense; the first is to keep
// secrets out of texts. It removes any text in the position of a password in
// any URL, and all other occurrences of the known secrets, except those that
// are also an ordinary word of their URL.
type Scrubber struct{ replacer *strings.Replacer }

// NewScrubber returns a scrubber for the given secrets.
func NewScrubber(secrets ...Secret) *Scrubber {
	type pair struct{ text, shown string }
	var pairs []pair
	var words []string
	for _, s := range secrets {
		words = append(words, s.words()...)
	}
	for _, s := range secrets {
		if shown := redact(s.text); shown != s.text && len(s.text) >= minPiece {
			pairs = append(pairs, pair{s.text, shown})
		}
		for _, piece := range s.pieces() {
			if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(word, piece) }) {
				pairs = append(pairs, pair{piece, hidden})
			}
		}
	}
	// Longest first: a whole URL is replaced before the password in it.
	slices.SortStableFunc(pairs, func(a, b pair) int { return len(b.text) - len(a.text) })
	var flat []string
	for _, p := range pairs {
		flat = append(flat, p.text, p.shown)
	}
	return &Scrubber{strings.NewReplacer(flat...)}
}

// Positions of passwords in any text.
var (
	// passwordInURL matches the text between the user name and the last @ of a
	// URL.
	passwordInURL = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/?#@"']*):[^\s"']*@`)
	// tokenInURL matches a user name alone, for servers that take it as a
	// token.
	tokenInURL = regexp.MustCompile(`((?:nats|tls|https?|pulsar(?:\+ssl)?)://)[^\s:/?#@"']+@`)
	// passwordInDSN matches the format of MySQL's driver.
	passwordInDSN = regexp.MustCompile(`([^\s:/@"'(]+):[^\s"']+@(tcp|unix)\(`)
	// namedPassword matches a parameter of a query or of a libpq connection
	// string.
	namedPassword = regexp.MustCompile(`(?i)\b(password|passwd|pwd|token|secret)=[^\s&"']+`)
)

// mask hides any text in the position of a password.
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
