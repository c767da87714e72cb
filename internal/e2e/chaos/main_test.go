//go:build linux || darwin

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/internal/e2e/process/child"
)

// roleVariable makes the test binary one of the processes of a run: it holds
// the role.
const roleVariable = "WAYBILL_CHAOS_ROLE"

func TestMain(m *testing.M) {
	text := os.Getenv(roleVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	child.Bind()
	if err := play(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// role configures a process.
type role struct {
	Kind   string // relay or producer
	Name   string
	Life   int // the number of earlier starts
	Source string
	Folder string
	Seed   uint64
	Quiet  bool // a relay without its producer
}

// play is the main function of a process.
func play(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if r.Kind == "relay" {
		return playRelay(ctx, r)
	}
	return playProducer(ctx, r)
}

// The configuration of a run.
const (
	lanes       = 8
	lease       = 2 * time.Second
	maxAttempts = 6
	// window is the number of events of a lane that a relay with these settings
	// has in flight.
	window = 128
)

// The files in a run's folder, beside one per unavailable destination.
const (
	journalFile = "journal"
	claimsFile  = "claims"
	healthyFile = "healthy"
)

// downFile exists while a destination is unavailable.
func (r role) downFile(destination string) string {
	return filepath.Join(r.Folder, "down-"+destination)
}

// exists reports whether a file exists.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// destinations are the events' destinations.
func destinations() []string { return []string{"north", "east", "south", "west"} }

// roll returns a number between 0 and 1 that depends only on the seed and the
// words.
func roll(seed uint64, words ...any) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, seed, words) // a hash accepts every write
	// The last bytes of the input have little effect on the high bits.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// connect opens a pool with an application name.
func connect(ctx context.Context, source, name string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(source)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	return pgxpool.NewWithConfig(ctx, cfg)
}
