package settings

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/store/driver"
)

// entry is a value of the file and its line. list has the elements of a list,
// and text has them with commas.
type entry struct {
	text string
	list []string
	line int
}

// section is a part of the file with settings: the common part, the entry of
// one relay, or that of a destination.
type section struct {
	name    string // of the relay or the destination
	above   []string
	line    int
	entries map[string]entry
	// destinations are the destinations of the section; nil if it has none.
	destinations []section
	// keys are the valid keys of a destination; nil for the other sections.
	keys map[string]bool
}

// path returns the full name of a key of the section.
func (s *section) path(key string) string {
	return strings.Join(append(slices.Clone(s.above), key), ".")
}

// names returns the valid keys of the section, without those of the whole
// process for a relay.
func (s *section) names() map[string]bool {
	if s.keys != nil {
		return s.keys
	}
	return fileNames(s.name != "")
}

// document is the content of a file.
type document struct {
	path   string
	common section
	relays []section
	jobs   []Job
	wrong  []error
}

// readFile reads a file of settings. It reports all problems at once.
func readFile(path string) (*document, error) {
	f, err := os.Open(path)
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, hint.New("check --config and "+ConfigVariable, "cannot read the file of settings %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	d := &document{path: filepath.ToSlash(path), common: section{entries: map[string]entry{}}}
	decoder := yaml.NewDecoder(f)
	var root yaml.Node
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF):
		return d, nil // empty
	case err != nil:
		return nil, hint.New("the file must be valid YAML", "%s: %s", d.path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, hint.New("keep one document in the file", "%s: the file has a second document after ---", d.path)
	}
	d.read(root.Content[0])
	return d, errors.Join(d.wrong...)
}

func (d *document) addError(n *yaml.Node, advice, format string, args ...any) {
	d.wrong = append(d.wrong, hint.New(advice, "%s:%d: %s", d.path, n.Line, fmt.Sprintf(format, args...)))
}

// pairs calls fn for every key of a mapping. It reports nodes that are no
// mapping, and duplicate keys.
func (d *document) pairs(n *yaml.Node, what string, fn func(key string, at, value *yaml.Node)) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		d.addError(n, "write one key and value per line", "%s is not a mapping", what)
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if seen[key.Value] {
			d.addError(key, "omit one of them", "duplicate key %s", key.Value)
			continue
		}
		seen[key.Value] = true
		fn(key.Value, key, resolve(n.Content[i+1]))
	}
}

// resolve follows aliases to their node.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func (d *document) read(root *yaml.Node) {
	d.pairs(root, "the file", func(key string, at, value *yaml.Node) {
		switch key {
		case "relays":
			d.named(value, "relays", func(name string, value *yaml.Node) { d.relay(name, value) })
		case "jobs":
			d.named(value, "jobs", func(name string, value *yaml.Node) { d.job(name, value) })
		default:
			d.setting(&d.common, key, at, value)
		}
	})
}

// named calls fn for every entry of a mapping of names, or of a list whose
// entries have a name.
func (d *document) named(n *yaml.Node, what string, fn func(name string, value *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		d.pairs(n, what, func(name string, _, value *yaml.Node) { fn(name, value) })
		return
	}
	for _, item := range n.Content {
		item = resolve(item)
		name, rest := "", yaml.Node{Kind: yaml.MappingNode, Line: item.Line}
		d.pairs(item, "an entry of "+what, func(key string, at, value *yaml.Node) {
			if key == "name" {
				name = value.Value
				return
			}
			rest.Content = append(rest.Content, at, value)
		})
		if name == "" {
			d.addError(item, "add name:", "an entry of %s has no name", what)
			continue
		}
		fn(name, &rest)
	}
}

// nameForm is the form of the name of a relay or a job; the name becomes part
// of a variable's name.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

func (d *document) relay(name string, value *yaml.Node) {
	if !nameForm.MatchString(name) {
		d.addError(value, "use letters, digits, - and _", "invalid relay name %q", name)
		return
	}
	for _, other := range d.relays {
		if relayVariable(other.name, "") == relayVariable(name, "") {
			d.addError(value, "use names that differ in more than case and dashes", "relays %s and %s have the same variables", other.name, name)
			return
		}
	}
	s := section{name: name, above: []string{"relays", name}, entries: map[string]entry{}}
	if value.Tag != "!!null" { // an entry with a name and no settings
		d.pairs(value, "relays."+name, func(key string, at, value *yaml.Node) { d.setting(&s, key, at, value) })
	}
	d.relays = append(d.relays, s)
}

// setting stores a value of the file in its section.
func (d *document) setting(s *section, key string, at, value *yaml.Node) {
	names := fileNames(false)
	if s.keys != nil {
		names = s.keys
	}
	switch {
	case value.Tag == "!!null":
		d.addError(at, "set a value, or omit the key", "%s is empty", s.path(key))
	case key == "destinations" && s.keys == nil:
		d.destinations(s, at, value)
	case value.Kind == yaml.MappingNode && isGroup(key, names):
		d.pairs(value, s.path(key), func(inner string, at, value *yaml.Node) { d.leaf(s, key+"."+inner, at, value) })
	case isGroup(key, names) && names[key+".url"] && value.Kind == yaml.ScalarNode: // store: URL
		d.leaf(s, key+".url", at, value)
	default:
		d.leaf(s, key, at, value)
	}
}

func isGroup(key string, names map[string]bool) bool {
	for name := range names {
		if strings.HasPrefix(name, key+".") {
			return true
		}
	}
	return false
}

// fileNames returns the valid keys of a section, including those that name
// files with secrets.
func fileNames(ofRelay bool) map[string]bool {
	names := make(map[string]bool)
	for _, k := range Table() {
		if ofRelay && k.Daemon {
			continue
		}
		names[k.Name] = true
		if k.Secret() {
			names[k.FileName()] = true
		}
	}
	return names
}

func (d *document) leaf(s *section, name string, at, value *yaml.Node) {
	full, names := s.path(name), s.names()
	if s.keys != nil {
		name = dashed(name)
	}
	_, twice := s.entries[name]
	switch {
	case !names[name] && s.keys == nil && fileNames(false)[name]:
		d.addError(at, "set it outside of relays", "%s is a setting of the whole process", full)
	case !names[name]:
		d.addError(at, didYouMean(name, names), "unknown setting %s", full)
	case twice:
		d.addError(at, "omit one of them", "duplicate key %s", full)
	case value.Kind == yaml.SequenceNode:
		list := []string{}
		for _, item := range value.Content {
			list = append(list, resolve(item).Value)
		}
		s.entries[name] = entry{text: strings.Join(list, ","), list: list, line: at.Line}
	case value.Kind != yaml.ScalarNode:
		d.addError(at, "write "+name[strings.LastIndex(name, ".")+1:]+": VALUE", "%s must be one value, not a mapping", full)
	case value.Tag == "!!null":
		d.addError(at, "set a value, or omit the key", "%s is empty", full)
	default:
		s.entries[name] = entry{text: value.Value, line: at.Line}
	}
}

// destinationForm is the form of the name of a destination; commands and the
// HTTP API take it as an argument.
var destinationForm = regexp.MustCompile(`^[\p{L}\p{N}][\p{L}\p{N}._-]*$`)

// destinations reads the destinations of a section.
func (d *document) destinations(s *section, at, value *yaml.Node) {
	full := s.path("destinations")
	s.destinations = []section{}
	d.named(value, full, func(name string, value *yaml.Node) {
		if !destinationForm.MatchString(name) || len(name) > driver.MaxDestinationName {
			d.addError(value, "use up to 64 letters, digits, ., - and _", "invalid destination name %q", name)
			return
		}
		if slices.ContainsFunc(s.destinations, func(o section) bool { return o.name == name }) {
			d.addError(value, "give each destination its own name", "duplicate destination %s", full+"."+name)
			return
		}
		one := section{
			name: name, above: append(slices.Clone(s.above), "destinations", name), line: value.Line, keys: destinationNames(), entries: map[string]entry{},
		}
		if value.Tag != "!!null" { // reported as an entry without a sink
			d.pairs(value, full+"."+name, func(key string, at, value *yaml.Node) { d.setting(&one, key, at, value) })
		}
		s.destinations = append(s.destinations, one)
	})
	switch n := len(s.destinations); {
	case n == 0 && len(d.wrong) == 0:
		d.addError(at, "add an entry with a name and a sink, or omit the key", "%s has no entries", full)
	case n > driver.MaxDestinations:
		d.addError(at, "use several outboxes", "%s has %d entries, at most %d are possible", full, n, driver.MaxDestinations)
	}
}

// destinationNames returns the valid keys of a destination.
func destinationNames() map[string]bool {
	names := make(map[string]bool)
	for _, k := range DestinationKeys() {
		names[k.Name] = true
		if k.Secret() {
			names[k.FileName()] = true
		}
	}
	return names
}

// dashed returns a key of a destination as the table has it: max_attempts is
// max-attempts.
func dashed(key string) string { return strings.ReplaceAll(key, "_", "-") }

// didYouMean returns a hint for an unknown name.
func didYouMean(name string, names map[string]bool) string {
	all := slices.Sorted(maps.Keys(names))
	if near := hint.Nearest(name, all); near != "" {
		return "did you mean " + near + "?"
	}
	// The key may be right and the group wrong or missing.
	leaf := name[strings.LastIndex(name, ".")+1:]
	for _, full := range all {
		if full[strings.LastIndex(full, ".")+1:] == leaf {
			return "did you mean " + full + "?"
		}
	}
	return "waybill config lists all settings"
}
