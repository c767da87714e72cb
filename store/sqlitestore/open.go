package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	_ "modernc.org/sqlite" // the driver that Open uses
)

// maxIdle is the number of connections that Open keeps: a new connection has to
// read the schema and prepare every statement again.
const maxIdle = 8

// Open opens or creates the file at path with the settings that the outbox
// needs (WAL, synchronous FULL, foreign keys checked, transactions with the
// write lock from the start) and returns a store over it. The service's own
// tables belong in the same file: use [Store.DB]. Close closes the file. A file
// that Open creates is readable and writable by its owner only.
//
// path is a plain path. Open rejects an in-memory database, because it belongs
// to one connection and is lost with that connection; use a file in a temporary
// directory, or package memstore.
func Open(path string, cfg Config) (*Store, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	dsn, err := dataSource(path, cfg)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: open: %w", err)
	}
	private(path)
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: open %s: %w", path, err)
	}
	db.SetMaxIdleConns(maxIdle)
	if err := db.PingContext(context.Background()); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("sqlitestore: open %s: %w; the directory must exist, and the directory and the file must be writable", path, err)
	}
	b := newBackend(db, cfg)
	b.opened, b.immediate = true, true
	return newStore(b), nil
}

// private creates a missing file so that only its owner may read it, because
// events contain the service's data. SQLite gives the files beside it, -wal and
// -shm, the same permissions. private does not change the permissions of an
// existing file. Errors are ignored here, because opening the file reports
// them.
func private(path string) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_ = f.Close()
	}
}

// dataSource returns the driver's name for the file, with the settings for
// every connection.
func dataSource(path string, cfg Config) (string, error) {
	switch {
	case path == "" || path == ":memory:":
		return "", errors.New("an in-memory database belongs to one connection and is lost with it; " +
			"use a file in a temporary directory, or package memstore")
	// SQLite would stop reading at the NUL byte and open another file.
	case strings.ContainsRune(path, 0):
		return "", errors.New("path contains a NUL byte")
	case strings.HasPrefix(path, "file:"):
		return "", errors.New("path is a URI, want a plain path; for custom settings, open the database and use New")
	}
	// The path is absolute, because the pool opens connections at any time and
	// must find the same file after a change of the working directory.
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	abs = filepath.ToSlash(abs)
	if !strings.HasPrefix(abs, "/") { // a drive letter
		abs = "/" + abs
	}
	settings := url.Values{
		"_txlock":       {"immediate"},
		"_busy_timeout": {strconv.FormatInt(cfg.BusyTimeout.Milliseconds(), 10)},
		"_foreign_keys": {"1"},
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"},
	}
	return "file:" + (&url.URL{Path: abs}).EscapedPath() + "?" + settings.Encode(), nil
}
