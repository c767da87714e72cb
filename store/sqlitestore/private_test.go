//go:build unix

package sqlitestore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestOpenMakesPrivateFiles: other users of the machine can read neither the
// events nor the write-ahead log. The permissions of an existing file stay.
func TestOpenMakesPrivateFiles(t *testing.T) {
	rights := func(path string) os.FileMode {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	open := func(path string, want os.FileMode) {
		t.Helper()
		db, err := sqlitestore.Open(path, sqlitestore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, err := db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if got := rights(path + suffix); got != want {
				t.Errorf("%s has %o, want %o", filepath.Base(path)+suffix, got, want)
			}
		}
	}
	open(filepath.Join(t.TempDir(), "new.db"), 0o600)
	shared := filepath.Join(t.TempDir(), "shared.db")
	if err := os.WriteFile(shared, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o660); err != nil { // independent of the umask
		t.Fatal(err)
	}
	open(shared, 0o660)
}
