//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Status is one line of the list of instances.
type Status struct {
	Name    string
	Owner   string // description of its user
	Servers []Server
}

// List returns the instances of the home folder with their running servers.
func (h *Home) List(ctx context.Context) ([]Status, error) {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, e := range entries {
		if !e.IsDir() || e.Name() != keptName && !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		in := &Instance{home: h, dir: filepath.Join(h.dir, e.Name())}
		if err := in.load(ctx); err != nil {
			return nil, err
		}
		list = append(list, Status{Name: e.Name(), Owner: h.ownerOf(in), Servers: in.Servers})
	}
	return list, nil
}

// ownerOf probes the instance's lock. It must not create the lock file of a
// folder that is being removed.
func (h *Home) ownerOf(in *Instance) string {
	if filepath.Base(in.dir) == keptName {
		return "kept until stop"
	}
	path := filepath.Join(in.dir, "lock")
	lock, err := tryLock(path, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "left behind"
	}
	if errors.Is(err, errLocked) {
		return "in use by process " + signature(path)
	}
	lock.unlock()
	return "left behind by process " + signature(path)
}

// CheckNames reports the first name that is not a server's.
func CheckNames(names []string) error {
	for _, name := range names {
		if !slices.Contains(EngineNames(), name) {
			return fmt.Errorf("no server is called %q: the names are %s", name, strings.Join(EngineNames(), ", "))
		}
	}
	return nil
}
