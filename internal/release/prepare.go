package release

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A version with a major number of 2 needs other module paths.
var versions = regexp.MustCompile(`^v[01]\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// A pseudo-version names a commit: go refuses it as the name of a tag.
var pseudo = regexp.MustCompile(`[.-][0-9]{14}-[0-9a-f]{12}$`)

// checkVersion reports a version that cannot be released.
func checkVersion(version string) error {
	if !versions.MatchString(version) || pseudo.MatchString(version) {
		return fmt.Errorf("version %q is not of the form v0.1.0, v1.2.3 or v1.2.3-rc.1", version)
	}
	_, pre, _ := strings.Cut(version, "-")
	for part := range strings.SplitSeq(pre, ".") {
		if len(part) > 1 && part[0] == '0' && strings.Trim(part, "0123456789") == "" {
			return fmt.Errorf("version %q has a number with a leading zero", version)
		}
	}
	if version == Placeholder {
		return fmt.Errorf("version %s is the placeholder between releases", version)
	}
	return nil
}

// A prepared release has the content of each released module.
type prepared struct {
	repo    *Repo
	version string
	modules []packed          // after the modules that they require
	changed map[string][]byte // the files that differ from the checkout
}

// packed is a module at the released version.
type packed struct {
	module
	files map[string]string // by their names in the module
}

// prepare makes the content of a release. It changes nothing in the checkout.
func (r *Repo) prepare(ctx context.Context, version string) (*prepared, error) {
	if err := checkVersion(version); err != nil {
		return nil, err
	}
	names, err := r.files(ctx)
	if err != nil {
		return nil, err
	}
	ordered, err := r.order()
	if err != nil {
		return nil, err
	}
	p := &prepared{repo: r, version: version, changed: map[string][]byte{}}
	if err := p.changeVersions(ctx); err != nil {
		return nil, err
	}
	sums := map[string]string{} // the go.sum lines of each module
	for _, m := range ordered {
		if err := p.changeSum(m, sums); err != nil {
			return nil, err
		}
		done := packed{module: m, files: map[string]string{}}
		for _, name := range filesOf(m.dir, names) {
			done.files[strings.TrimPrefix(name, m.dir+"/")] = name
		}
		if _, ok := done.files["LICENSE"]; !ok { // as the go command does
			done.files["LICENSE"] = "LICENSE"
		}
		if len(p.changed[path.Join(m.dir, "go.sum")]) > 0 {
			done.files["go.sum"] = path.Join(m.dir, "go.sum")
		}
		p.modules = append(p.modules, done)
		if sums[m.path], err = p.sum(done); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// order returns the released modules, each after those that it requires: its
// go.sum has their checksums.
func (r *Repo) order() ([]module, error) {
	var ordered []module
	state := map[string]int{} // 1 is being visited, 2 is done
	var visit func(m module) error
	visit = func(m module) error {
		switch state[m.path] {
		case 1:
			return fmt.Errorf("%s requires a module that requires it", m.path)
		case 2:
			return nil
		}
		state[m.path] = 1
		for _, need := range r.siblings(m) {
			sibling, _ := r.module(need.Path)
			if err := visit(sibling); err != nil {
				return err
			}
		}
		state[m.path] = 2
		ordered = append(ordered, m)
		return nil
	}
	for _, dir := range r.released {
		m, err := r.in(dir)
		if err != nil {
			return nil, err
		}
		if err := visit(m); err != nil {
			return nil, err
		}
	}
	return ordered, nil
}

// changeVersions replaces the placeholder in all go.mod and go.work files.
func (p *prepared) changeVersions(ctx context.Context) error {
	scratch, err := os.MkdirTemp("", "waybill-release-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	change := func(name string, flags []string) error {
		if len(flags) == 0 {
			return nil
		}
		file := filepath.Join(scratch, "go.mod")
		if err := errors.Join(update(p.repo.file(name), file), edit(ctx, file, flags)); err != nil {
			return err
		}
		p.changed[name], err = os.ReadFile(file)
		return err
	}
	for _, name := range p.repo.workspaces() {
		work, err := p.read(name)
		if err != nil {
			return err
		}
		for _, m := range p.repo.modules {
			// In place, rather than by "go work edit": the list stays one
			// block.
			work = bytes.ReplaceAll(work, []byte(m.path+" "+Placeholder+" =>"), []byte(m.path+" "+p.version+" =>"))
		}
		p.changed[name] = work
	}
	for _, m := range p.repo.modules {
		var mod []string
		for _, need := range p.repo.siblings(m) {
			mod = append(mod, "-require="+need.Path+"@"+p.version)
		}
		if err := change(path.Join(m.dir, "go.mod"), mod); err != nil {
			return err
		}
	}
	return nil
}

// changeSum adds the checksums of the modules that m requires to its go.sum, in
// the order of the go command.
func (p *prepared) changeSum(m module, sums map[string]string) error {
	name := path.Join(m.dir, "go.sum")
	text, err := p.read(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(line string) bool { return line == "" })
	of := func(line string) string { modulePath, _, _ := strings.Cut(line, " "); return modulePath }
	for _, need := range p.repo.siblings(m) {
		at := slices.IndexFunc(lines, func(line string) bool { return of(line) >= need.Path })
		if at < 0 {
			at = len(lines)
		} else if of(lines[at]) == need.Path {
			return fmt.Errorf("%s has a checksum of %s already", name, need.Path)
		}
		lines = slices.Insert(lines, at, sums[need.Path])
	}
	if len(p.repo.siblings(m)) > 0 {
		p.changed[name] = []byte(strings.Join(lines, ""))
	}
	return nil
}

// read returns the content of a file in the release.
func (p *prepared) read(name string) ([]byte, error) {
	if text, ok := p.changed[name]; ok {
		return text, nil
	}
	return os.ReadFile(p.repo.file(name))
}

// sum returns the lines of m for go.sum.
func (p *prepared) sum(m packed) (string, error) {
	hash := func(files map[string]string) (string, error) {
		all := sha256.New()
		for _, name := range sorted(files) {
			text, err := p.read(files[name])
			if err != nil {
				return "", err
			}
			fmt.Fprintf(all, "%x  %s\n", sha256.Sum256(text), name)
		}
		return "h1:" + base64.StdEncoding.EncodeToString(all.Sum(nil)), nil
	}
	content := map[string]string{}
	for name, file := range m.files {
		content[p.prefix(m)+name] = file
	}
	code, err := hash(content)
	if err != nil {
		return "", err
	}
	mod, err := hash(map[string]string{"go.mod": m.files["go.mod"]})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%[1]s %[2]s %[3]s\n%[1]s %[2]s/go.mod %[4]s\n", m.path, p.version, code, mod), nil
}

// prefix returns what the names in the archive of m begin with.
func (p *prepared) prefix(m packed) string { return m.path + "@" + p.version + "/" }

func sorted(files map[string]string) []string {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Proxy writes the released modules at a version into a folder, in the layout
// of a module proxy: GOPROXY=file://FOLDER serves them. It does not call Check.
func (r *Repo) Proxy(ctx context.Context, version, folder string) error {
	p, err := r.prepare(ctx, version)
	if err != nil {
		return err
	}
	for _, m := range p.modules {
		dir := filepath.Join(folder, filepath.FromSlash(m.path), "@v")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC()})
		if err != nil {
			return err
		}
		mod, err := p.read(m.files["go.mod"])
		if err != nil {
			return err
		}
		for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				return err
			}
		}
		if err := p.pack(m, filepath.Join(dir, version+".zip")); err != nil {
			return err
		}
	}
	return nil
}

// pack writes the archive of a module.
func (p *prepared) pack(m packed, file string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := zip.NewWriter(f)
	for _, name := range sorted(m.files) {
		text, err := p.read(m.files[name])
		if err != nil {
			return err
		}
		entry, err := w.Create(p.prefix(m) + name)
		if err != nil {
			return err
		}
		if _, err := entry.Write(text); err != nil {
			return err
		}
	}
	return w.Close()
}
