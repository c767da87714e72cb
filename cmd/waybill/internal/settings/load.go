package settings

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// ConfigVariable is the environment variable with the name of the file of
// settings; the flag --config overrides it.
const ConfigVariable = "WAYBILL_CONFIG"

// RelayVariable is the environment variable with the name of the relay to use;
// the flag --relay overrides it.
const RelayVariable = "WAYBILL_RELAY"

// DefaultFile is read if it exists and neither --config nor ConfigVariable is
// set.
const DefaultFile = "waybill.yaml"

// Sources are the origins of settings.
type Sources struct {
	// Config is the file that --config names; "" for none.
	Config string
	// Flags are the given flags by key: "store.url", "store.url-file".
	Flags map[string]string
	// Environ is the environment, as [os.Environ] returns it.
	Environ []string
}

// Loaded is the result of combining all sources.
type Loaded struct {
	// Relays has an entry for each relay of the file, or one entry without a
	// name.
	Relays []*Settings
	// Jobs are the jobs of the file.
	Jobs []Job
	// File is the file that was read; "" if none was.
	File string
	// Warnings report probable mistakes.
	Warnings []string
}

// Daemon returns the settings of the whole process. They are the same in every
// entry.
func (l *Loaded) Daemon() *Settings { return l.Relays[0] }

// Pick returns the relay of a name. Without a name there must be exactly one
// relay.
func (l *Loaded) Pick(name string) (*Settings, error) {
	var names []string
	for _, s := range l.Relays {
		if s.Name == name || name == "" && len(l.Relays) == 1 {
			return s, nil
		}
		names = append(names, s.Name)
	}
	if name == "" {
		return nil, hint.New("choose one: --relay "+strings.Join(names, " or --relay "), "%d relays are configured", len(names))
	}
	if len(names) == 1 && names[0] == "" {
		return nil, hint.New("omit --relay, or add relays: to the file", "relay %s does not exist: the settings name no relays", name)
	}
	return nil, hint.New("relays: "+strings.Join(names, ", "), "relay %s does not exist", name)
}

// Secrets returns all values that must not be shown.
func (l *Loaded) Secrets() []Secret {
	var all []Secret
	for _, s := range l.Relays {
		all = append(all, s.Secrets()...)
	}
	return all
}

// Load reads all settings. The error joins all problems.
func Load(src Sources) (*Loaded, error) {
	env := parseEnviron(src.Environ)
	file, err := openFile(src.Config, env)
	if err != nil {
		return nil, problems(err)
	}
	out := &Loaded{Jobs: file.jobs, File: file.path}
	sections := file.relays
	if len(sections) == 0 {
		sections = []section{{}}
	}
	var errs []error
	for _, s := range sections {
		one, err := (&loader{flags: src.Flags, env: env, file: file, own: s}).load()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out.Relays = append(out.Relays, one)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, problems(err)
	}
	if err := apart(out.Relays); err != nil {
		return nil, err
	}
	if err := out.placeJobs(); err != nil {
		return nil, err
	}
	out.Warnings = unknownVariables(env, sections)
	return out, nil
}

// Problems lists all errors in the settings.
type Problems []error

// Error returns all problems on one line.
func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i, err := range p {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the problems.
func (p Problems) Unwrap() []error { return p }

// problems flattens joined errors and removes repetitions: an error in a common
// setting would otherwise appear once per relay.
func problems(err error) error {
	var flat Problems
	var walk func(error)
	walk = func(err error) {
		_, single := err.(*hint.Error) //nolint:errorlint // this is about the shape of this very error
		if many, ok := err.(interface{ Unwrap() []error }); ok && !single {
			for _, one := range many.Unwrap() {
				walk(one)
			}
			return
		}
		if !slices.ContainsFunc(flat, func(other error) bool { return other.Error() == err.Error() }) {
			flat = append(flat, err)
		}
	}
	walk(err)
	return flat
}

// apart rejects two relays over the same tables: each destination would receive
// half of the events of one outbox.
func apart(all []*Settings) error {
	for i, a := range all {
		for _, b := range all[:i] {
			if a.Store.URL == b.Store.URL && a.Store.Schema == b.Store.Schema && a.Store.Prefix == b.Store.Prefix {
				return hint.New("give each its own store.url, store.schema or store.prefix", "relays %s and %s use the same tables", b.Name, a.Name)
			}
		}
	}
	return nil
}

// placeJobs assigns every job to one of the relays.
func (l *Loaded) placeJobs() error {
	var errs Problems
	for i := range l.Jobs {
		j := &l.Jobs[i]
		one, err := l.Pick(j.Relay)
		if err != nil {
			errs = append(errs, hint.New("add relay: NAME to the job", "%s: job %s: %w", j.Where(), j.Name, err))
			continue
		}
		j.Relay = one.Name
	}
	if len(errs) == 0 {
		return nil
	}
	return errs
}

// JobsOf returns the jobs of a relay.
func (l *Loaded) JobsOf(s *Settings) []Job {
	var out []Job
	for _, j := range l.Jobs {
		if j.Relay == s.Name {
			out = append(out, j)
		}
	}
	return out
}

func parseEnviron(environ []string) map[string]string {
	env := make(map[string]string)
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, variablePrefix) && value != "" { // an empty variable counts as unset
			env[name] = value
		}
	}
	return env
}

func openFile(config string, env map[string]string) (*document, error) {
	path := config
	if path == "" {
		path = env[ConfigVariable]
	}
	if path == "" {
		if _, err := os.Stat(DefaultFile); err != nil {
			return &document{common: section{}}, nil
		}
		path = DefaultFile
	}
	return readFile(path)
}

// unknownVariables returns warnings about variables with the prefix of settings
// that are no settings.
func unknownVariables(env map[string]string, sections []section) []string {
	known := map[string]bool{ConfigVariable: true, RelayVariable: true}
	for name := range fileNames(false) {
		known[variableOf(name)] = true
	}
	for _, s := range sections {
		for name := range fileNames(true) {
			if s.name != "" {
				known[relayVariable(s.name, name)] = true
			}
		}
	}
	var out []string
	for name := range env {
		if known[name] || strings.HasPrefix(name, variablePrefix+"TEST_") {
			continue
		}
		out = append(out, fmt.Sprintf("unknown variable %s (%s)", name, didYouMean(name, known)))
	}
	slices.Sort(out)
	return out
}

// loader resolves the values of one relay.
type loader struct {
	flags map[string]string
	env   map[string]string
	file  *document
	own   section
}

func (l *loader) load() (*Settings, error) {
	s := &Settings{Name: l.own.name}
	var errs []error
	for _, k := range Table() {
		text, source, err := l.find(k)
		if err == nil {
			sl := k.slot(s)
			if wrong := sl.set(text); wrong != nil {
				err = hint.New(k.Help+" ("+k.Unit+")", "%s (%s): %w", k.Name, source, wrong)
			}
			s.values = append(s.values, Value{Key: k, Text: sl.show(), Source: source})
		}
		errs = append(errs, err)
	}
	errs = append(errs, l.conflict())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := l.addDestinations(s); err != nil {
		return nil, err
	}
	return s, s.check()
}

// find returns the effective text of a setting and its origin.
func (l *loader) find(k Key) (text, source string, err error) {
	if k.Name == "sink.url" && len(l.destinations()) > 0 {
		return "", "default", nil
	}
	for _, rung := range l.rungs(k) {
		if text, source, ok, err := rung.value(k); ok || err != nil {
			return text, source, err
		}
	}
	if k.Name == "relay.name" && l.own.name != "" {
		return l.own.name, "relays." + l.own.name, nil
	}
	if k.Name == "sink.url" && l.given("store.url") {
		return "", "default", nil
	}
	return k.Default, "default", nil
}

// given reports whether a source sets a key. A store that is set belongs to a
// service, and its events must not go to a sink that no setting names.
func (l *loader) given(name string) bool {
	for _, k := range Table() {
		if k.Name != name {
			continue
		}
		for _, rung := range l.rungs(k) {
			_, _, direct := rung(k.Name)
			_, _, byFile := rung(k.FileName())
			if direct || k.Secret() && byFile {
				return true
			}
		}
	}
	return false
}

// rung looks up a key in one source.
type rung func(name string) (text, source string, ok bool)

// value returns the text of a setting, which may be in a file if it is a
// secret.
func (r rung) value(k Key) (text, source string, ok bool, err error) {
	text, source, ok = r(k.Name)
	if !k.Secret() {
		return text, source, ok, nil
	}
	path, from, byFile := r(k.FileName())
	switch {
	case ok && byFile:
		return "", "", false, hint.New("omit one of them", "%s and %s both set %s", source, from, k.Name)
	case byFile:
		text, err := readSecret(path)
		if err != nil {
			return "", "", false, hint.New("the file is named by "+from, "%s: %w", k.FileName(), err)
		}
		return text, from + ": " + path, true, nil
	}
	return text, source, ok, nil
}

// rung returns the lookup in a section of the file.
func (d *document) rung(s section) rung {
	return func(name string) (string, string, bool) {
		e, ok := s.entries[name]
		return e.text, d.at(e.line), ok
	}
}

// at returns a position in the file.
func (d *document) at(line int) string { return fmt.Sprintf("%s:%d", d.path, line) }

// rungs returns the sources of a setting, in order of precedence.
func (l *loader) rungs(k Key) []rung {
	flag := func(name string) (string, string, bool) {
		text, ok := l.flags[name]
		return text, "--" + flagOf(name), ok
	}
	variable := func(variable func(string) string) rung {
		return func(name string) (string, string, bool) {
			text, ok := l.env[variable(name)]
			return text, variable(name), ok
		}
	}
	all := []rung{flag}
	if l.own.name != "" && !k.Daemon {
		all = append(all, variable(func(name string) string { return relayVariable(l.own.name, name) }))
	}
	all = append(all, variable(variableOf))
	if l.own.name != "" && !k.Daemon {
		all = append(all, l.file.rung(l.own))
	}
	return append(all, l.file.rung(l.file.common))
}

// secretSize is the maximum size of a file with a secret; a larger file is
// probably the wrong one.
const secretSize = 64 << 10

func readSecret(path string) (string, error) {
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		return "", err
	case len(data) > secretSize:
		return "", fmt.Errorf("%s has %d bytes; the maximum is %d", path, len(data), secretSize)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	if strings.ContainsAny(text, "\r\n") {
		return "", fmt.Errorf("%s has more than one line", path)
	}
	return text, nil
}

// check rejects combinations of values that contradict each other. The library
// validates the values of its own Config structs.
func (s *Settings) check() error {
	var errs []error
	r := s.Relay
	if r.Heartbeat > r.Lease/3 {
		errs = append(errs, hint.New("lower relay.heartbeat or raise relay.lease",
			"relay.heartbeat (%s) exceeds a third of relay.lease (%s)", FormatDuration(r.Heartbeat), FormatDuration(r.Lease)))
	}
	if r.BackoffBase > r.BackoffMax {
		errs = append(errs, hint.New("lower relay.backoff-base or raise relay.backoff-max",
			"relay.backoff-base (%s) exceeds relay.backoff-max (%s)", FormatDuration(r.BackoffBase), FormatDuration(r.BackoffMax)))
	}
	switch in := s.Inbox; {
	case in.Retention > 0 && in.RedeliveryWindow == 0:
		errs = append(errs, hint.New("set inbox.redelivery-window to the time during which an event may be delivered again",
			"inbox.retention requires inbox.redelivery-window"))
	case in.Retention > 0 && in.Retention < in.RedeliveryWindow:
		errs = append(errs, hint.New("raise inbox.retention: an event that is redelivered after its record was purged is applied again",
			"inbox.retention (%s) is shorter than inbox.redelivery-window (%s)", FormatDuration(in.Retention), FormatDuration(in.RedeliveryWindow)))
	}
	if s.CDC.Enabled && s.Relay.Enabled && s.Enabled {
		errs = append(errs, hint.New("set relay.enabled or cdc.enabled to false: only one of the two publishes the events",
			"cdc.enabled and relay.enabled are both true"))
	}
	if in := s.Inbox; in.Enabled && in.Retry && len(s.Destinations) > 0 {
		errs = append(errs, hint.New("set inbox.retry to false, and retry in the processes of the consumer groups, by inbox.Inbox.Run",
			"inbox.retry is on, and there are destinations: a repeated event would go to all of them"))
	}
	if (s.HTTP.Cert == "") != (s.HTTP.Key == "") {
		errs = append(errs, hint.New("set both or neither", "http.cert and http.key must be set together"))
	}
	return errors.Join(errs...)
}

// GivenSecrets returns the secrets among flags and variables before any
// validation, so that no error can show them.
func GivenSecrets(flags map[string]string, environ []string) []Secret {
	var out []Secret
	env := parseEnviron(environ)
	for _, k := range Table() {
		if !k.Secret() {
			continue
		}
		if text, ok := flags[k.Name]; ok {
			out = append(out, NewSecret(text))
		}
		for name, text := range env {
			if name == k.Variable() || strings.HasPrefix(name, variablePrefix+"RELAYS_") && strings.HasSuffix(name, strings.TrimPrefix(k.Variable(), "WAYBILL")) {
				out = append(out, NewSecret(text))
			}
		}
	}
	return out
}
