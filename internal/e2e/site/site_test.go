package site_test

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/waybillhq/waybill/internal/e2e/browser"
	"github.com/waybillhq/waybill/internal/testserver"
)

const (
	root       = "../../.."
	repository = "https://github.com/waybillhq/waybill/"
	// base is the path of the site in site/hugo.yaml.
	base = "/waybill/"
)

// build builds the site as make site does, and returns its folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	hugo := exec.CommandContext(t.Context(), testserver.Shell(t, "hugo"), "--source", filepath.Join(root, "site"), "--destination", dir,
		"--noBuildLock", "--panicOnWarning")
	if out, err := hugo.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// page is what other pages and the checks need of one.
type page struct {
	links, loads []string
	ids          map[string]bool
	title        string
}

func parse(t *testing.T, file string) page {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	tree, err := html.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	p := page{ids: map[string]bool{}}
	for n := range tree.Descendants() {
		for _, a := range n.Attr {
			switch {
			case a.Key == "id":
				if p.ids[a.Val] {
					t.Errorf("%s: two elements have the id %s", file, a.Val)
				}
				p.ids[a.Val] = true
			case n.Data == "a" && a.Key == "href":
				p.links = append(p.links, a.Val)
			case a.Key == "href" || a.Key == "src":
				p.loads = append(p.loads, a.Val)
			}
		}
		if n.Data == "h1" && p.title == "" && n.FirstChild != nil {
			p.title = strings.TrimSpace(n.FirstChild.Data)
		}
	}
	return p
}

// pages parses all pages, by their paths on the server.
func pages(t *testing.T, dir string) map[string]page {
	t.Helper()
	all := map[string]page{}
	for file := range files(t, os.DirFS(dir)) {
		if strings.HasSuffix(file, ".html") {
			all[base+strings.TrimSuffix(file, "index.html")] = parse(t, filepath.Join(dir, file))
		}
	}
	return all
}

func files(t *testing.T, in fs.FS) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := fs.WalkDir(in, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found[name] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// broken says what is wrong with a link of the page at from, or nothing.
func broken(all map[string]page, there map[string]bool, from, link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	if rest, ok := strings.CutPrefix(link, repository); ok {
		for _, kind := range []string{"blob/main/", "edit/main/"} {
			if file, ok := strings.CutPrefix(rest, kind); ok {
				file, _, _ = strings.Cut(file, "#")
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
					return err.Error()
				}
			}
		}
		return ""
	}
	if u.IsAbs() {
		return "" // the machine that builds the site may have no network
	}
	to := u.Path
	switch {
	case to == "":
		to = from
	case !strings.HasPrefix(to, "/"):
		to = path.Join(from, to) + "/"
	}
	target, ok := all[to]
	switch {
	case !ok && there[strings.TrimPrefix(to, base)]:
		return ""
	case !ok:
		return "there is no page " + to
	case u.Fragment != "" && !target.ids[u.Fragment]:
		return "the page " + to + " has no section " + u.Fragment
	}
	return ""
}

// TestLinks: each link leads to a page, a section or a file that exists, and
// the pages load nothing from other hosts.
func TestLinks(t *testing.T) {
	dir := build(t)
	all, there := pages(t, dir), files(t, os.DirFS(dir))
	links := 0
	for from, p := range all {
		for _, link := range p.links {
			links++
			if problem := broken(all, there, from, link); problem != "" {
				t.Errorf("%s links to %s: %s", from, link, problem)
			}
		}
		for _, load := range p.loads {
			if !there[strings.TrimPrefix(load, base)] && all[load].ids == nil {
				t.Errorf("%s loads %s, which is not a file of the site", from, load)
			}
		}
	}
	t.Logf("%d pages, %d links", len(all), links)
	for link, want := range map[string]string{
		base + "relay/#no-such-section":          "no section",
		"#no-such-section":                       "no section",
		base + "no-such-page/":                   "no page",
		repository + "blob/main/no/such/file":    "no such file",
		base + "relay/":                          "",
		repository + "blob/main/CONTRIBUTING.md": "",
	} {
		if problem := broken(all, there, base, link); (want == "") != (problem == "") || !strings.Contains(problem, want) {
			t.Errorf("a link to %s: %q, want %q", link, problem, want)
		}
	}
}

// TestEveryPageIsListed: each page of docs/ is in the site under its own title,
// and in the navigation of every page.
func TestEveryPageIsListed(t *testing.T) {
	all := pages(t, build(t))
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	for _, file := range append(docs, filepath.Join(root, "CHANGELOG.md")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		at := base + strings.ToLower(strings.TrimSuffix(filepath.Base(file), ".md")) + "/"
		if all[at].title != title {
			t.Errorf("%s has the title %q in the site, want %q", file, all[at].title, title)
		}
		if !slices.Contains(all[base].links, at) {
			t.Errorf("the navigation lacks %s; add it to site/hugo.yaml", file)
		}
	}
}

// TestSearch: a reader finds a section by typing, and goes there by keyboard.
func TestSearch(t *testing.T) {
	dir := build(t)
	server := httptest.NewServer(http.StripPrefix(base, http.FileServer(http.Dir(dir))))
	t.Cleanup(server.Close)

	b := browser.New(t)
	b.Open(server.URL + base + "guide/")
	browser.Value[bool](b, `document.querySelector('input[type=search]').focus() === undefined`)
	b.Key("poolers")
	b.Until(`document.querySelector('#found a') !== null`)
	if got := browser.Value[string](b, `document.querySelector('#found a').textContent`); !strings.HasPrefix(got, "Operating › Poolers") {
		t.Errorf("the first result is %q", got)
	}
	b.Key("\r")
	b.Until(`location.pathname !== '` + base + `guide/' && document.querySelector('h2#poolers') !== null`)
	if got := browser.Value[string](b, `location.pathname + location.hash`); got != base+"operating/#poolers" {
		t.Errorf("Enter leads to %s", got)
	}
	if got := browser.Value[string](b, `getComputedStyle(document.querySelector('header')).position`); got != "sticky" {
		t.Error("the page has no style")
	}
	b.Clean("the search")
	b.Picture(t.ArtifactDir(), "search.png")
}

func TestSearchIndex(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(build(t), "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sections []struct{ Page, Heading, URL, Text string }
	if err := json.Unmarshal(data, &sections); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, s := range sections {
		if _, twice := seen[s.URL]; twice || s.Heading == "" || s.Page == "" {
			t.Errorf("the section %+v", s)
		}
		seen[s.URL] = s.Text
	}
	if text := seen[base+"operating/#poolers"]; !strings.Contains(text, "PgBouncer") {
		t.Errorf("the section about poolers has the text %q", text)
	}
}
