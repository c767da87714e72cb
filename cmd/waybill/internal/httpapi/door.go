package httpapi

import (
	"sync"
	"time"
)

// door slows down guessing of tokens. Every address has a number of guesses; a
// wrong token uses one, and one is restored per second. A client without
// guesses is rejected. A valid token uses none.
type door struct {
	mu      sync.Mutex
	guesses map[string]*guesses
}

type guesses struct {
	left float64
	at   time.Time
}

const (
	// guessesAtOnce is the maximum number of wrong tokens in a burst, and
	// guessEvery the interval at which one is restored.
	guessesAtOnce = 30
	guessEvery    = time.Second
	// addresses is the maximum number of distinguished addresses; all others
	// share one entry.
	addresses = 1024
)

// opens reports whether a token from an address is checked.
func (d *door) opens(from string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of(from, now).left >= 1
}

// failed records a wrong token.
func (d *door) failed(from string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of(from, time.Now()).left--
}

// of returns the guesses of an address; mu is held.
func (d *door) of(from string, now time.Time) *guesses {
	if d.guesses == nil {
		d.guesses = make(map[string]*guesses)
	}
	g := d.guesses[from]
	if g == nil && len(d.guesses) >= addresses {
		for other, one := range d.guesses {
			if now.Sub(one.at) > guessesAtOnce*guessEvery { // all its guesses are restored
				delete(d.guesses, other)
			}
		}
		if len(d.guesses) >= addresses {
			from = ""
			g = d.guesses[from]
		}
	}
	if g == nil {
		g = &guesses{left: guessesAtOnce, at: now}
		d.guesses[from] = g
	}
	if passed := now.Sub(g.at); passed > 0 {
		g.left, g.at = min(guessesAtOnce, g.left+passed.Seconds()/guessEvery.Seconds()), now
	}
	return g
}
