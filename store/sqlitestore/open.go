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

// maxIdle is how many connections Open keeps: opening one means reading the schema and preparing every statement again.
const maxIdle = 8

// Open opens the file at path, or makes it, with the settings that the outbox wants (WAL, synchronous FULL, foreign keys
// checked, transactions that write from the start) and returns a store over it. The service's own tables belong in the same
// file: use [Store.DB]. Close closes it. A file that Open makes can be read and written by its
// owner only.
//
// path is a plain path. A database in memory is refused: it belongs to one connection and dies with it; use a file in a
// temporary folder, or package memstore.
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
		return nil, fmt.Errorf("sqlitestore: open %s: %w; the folder must exist, and both it and the file must be writable", path, err)
	}
	s := newStore(db, cfg)
	s.opened, s.immediate = true, true
	return s, nil
}

// private makes the file, if it is not there, so that only its owner may read it: events hold what
// their service knows. SQLite gives the files beside it, -wal and -shm, the same rights. Rights of
// a file that exists are its owner's decision. What fails here, opening reports.
func private(path string) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_ = f.Close()
	}
}

// dataSource returns the driver's name for the file, with the settings for every connection.
func dataSource(path string, cfg Config) (string, error) {
	switch {
	case path == "" || path == ":memory:":
		return "", errors.New("a database in memory belongs to one connection and dies with it; " +
			"name a file in a temporary folder, or use package memstore")
	case strings.ContainsRune(path, 0): // SQLite would stop reading there, and open another file
		return "", errors.New("the path contains a NUL")
	case strings.HasPrefix(path, "file:"):
		return "", errors.New("want a plain path, not a URI; for settings of your own open the database yourself and use New")
	}
	// Absolute: the pool opens connections whenever it needs one, and must find the same file after a change of folder.
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
