// Package filebroker is a broker in a folder of the file system: a topic is a
// subfolder, and a message is a file. One process at a time may publish to a
// folder.
package filebroker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures a [Broker]. The zero value is valid.
type Config struct {
	// MaxBytes is the maximum size of a message. Defaults to 1 MiB.
	MaxBytes int
	// PollInterval is the interval at which sources look for new files.
	// Defaults to 100 ms.
	PollInterval time.Duration
}

// Broker is a folder with messages. It is safe for concurrent use.
type Broker struct {
	dir string
	cfg Config

	mu   sync.Mutex
	last map[string]uint64 // number of the last message, by topic
}

// Open returns a broker over a folder, which must exist.
func Open(dir string, cfg Config) (*Broker, error) {
	var errs []error
	if cfg.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("Config.MaxBytes: %d is negative", cfg.MaxBytes))
	}
	if cfg.PollInterval < 0 {
		errs = append(errs, fmt.Errorf("Config.PollInterval: %v is negative", cfg.PollInterval))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("filebroker: %w", err)
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1 << 20
	}
	if cfg.PollInterval == 0 {
		cfg.PollInterval = 100 * time.Millisecond
	}
	if _, err := os.ReadDir(dir); err != nil {
		return nil, fmt.Errorf("filebroker: %w", err)
	}
	return &Broker{dir: dir, cfg: cfg, last: make(map[string]uint64)}, nil
}

// names holds the rules for topics, which are names of folders. Two dots in a
// row are an empty part, so no topic leads out of the broker's folder.
var names = broker.TopicRules{
	Allowed: func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	},
	Separator: '.', Max: 200,
}

// Names returns the rules for topics, for templates such as "orders.{type}".
func Names() broker.TopicRules { return names }

var errSize = errors.New("message too large")

// Failures returns the failure table.
func Failures() driver.Failures {
	return driver.Failures{
		{Name: "message too large", Class: waybill.ClassPermanent, Why: "its size does not change", Match: driver.IsAny(errSize)},
		{Name: "no space left", Class: waybill.ClassUnavailable, Scope: "broker", Why: "an operator must make room", Match: driver.IsAny(syscall.ENOSPC)},
		{Name: "permission denied", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the account has no write access", Match: driver.IsAny(fs.ErrPermission)},
		driver.Unreachable(),
	}
}

// publish stores a message. When publish returns nil, the message is on disk,
// under a name that sorts behind all earlier messages of its topic.
func (b *Broker) publish(m *broker.Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > b.cfg.MaxBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", errSize, len(text), b.cfg.MaxBytes)
	}
	folder := filepath.Join(b.dir, m.Topic)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last, known := b.last[m.Topic]
	if !known {
		numbers, err := list(folder, 0)
		if err != nil {
			return err
		}
		if n := len(numbers); n > 0 {
			last = numbers[n-1]
		}
	}
	if err := store(folder, last+1, text); err != nil {
		return err
	}
	b.last[m.Topic] = last + 1
	return nil
}

// store writes a file, and gives it its name when it is complete.
func store(folder string, number uint64, text []byte) error {
	f, err := os.CreateTemp(folder, "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path(folder, number))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncFolder(folder)
}

// syncFolder makes the names in a folder durable.
func syncFolder(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// path returns the file of a message. The names sort like the numbers.
func path(folder string, number uint64) string {
	return filepath.Join(folder, fmt.Sprintf("%020d.json", number))
}

// list returns the numbers of a folder's messages above a number, in order.
func list(folder string, above uint64) ([]uint64, error) {
	entries, err := os.ReadDir(folder) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var numbers []uint64
	for _, entry := range entries {
		var n uint64
		name, ok := strings.CutSuffix(entry.Name(), ".json")
		if _, err := fmt.Sscanf(name, "%020d", &n); ok && err == nil && n > above {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// read returns a message.
func read(folder string, number uint64) (broker.Message, error) {
	var m broker.Message
	text, err := os.ReadFile(path(folder, number))
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}
