package sqlitestore

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzDataSource: any path names exactly its file, and cannot add a setting.
func FuzzDataSource(f *testing.F) {
	for _, path := range []string{"shop.db", "/a b/c?d=e#f", "%41%", "//host/x", "a&_txlock=deferred", "ä\xff", "..", `C:\x`} {
		f.Add(path)
	}
	cfg, err := Config{}.complete()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string) {
		dsn, err := dataSource(path, cfg)
		if err != nil {
			return
		}
		name, settings, _ := strings.Cut(strings.TrimPrefix(dsn, "file:"), "?")
		got, err := url.PathUnescape(name)
		if err != nil {
			t.Fatalf("%q: %v", dsn, err)
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err) // the working directory has a path
		}
		if want := filepath.ToSlash(abs); got != want && got != "/"+want {
			t.Errorf("%q names %q", path, got)
		}
		if strings.HasPrefix(name, "//") || strings.ContainsAny(name, "#\x00") {
			t.Errorf("%q is %q: SQLite would not read it as a path", path, name)
		}
		values, err := url.ParseQuery(settings)
		if err != nil || len(values) != 5 || values.Get("_txlock") != "immediate" {
			t.Errorf("%q: settings %q, %v", path, settings, err)
		}
	})
}
