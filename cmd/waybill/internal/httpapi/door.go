package httpapi

import (
	"sync"
	"time"
)

// door slows down who guesses tokens. Every address has guesses, of which each wrong one takes one,
// and which come back one a second. Who has none left is not heard. The right token costs nothing.
type door struct {
	mu      sync.Mutex
	guesses map[string]*guesses
}

type guesses struct {
	left float64
	at   time.Time
}

const (
	// guessesAtOnce is how many wrong tokens may come at once, and guessEvery when another may.
	guessesAtOnce = 30
	guessEvery    = time.Second
	// addresses is how many addresses are told apart; the others are one.
	addresses = 1024
)

// opens reports whether a token from an address is looked at.
func (d *door) opens(from string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of(from, now).left >= 1
}

// failed notes a wrong token.
func (d *door) failed(from string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of(from, time.Now()).left--
}

// of returns what an address has left; mu is held.
func (d *door) of(from string, now time.Time) *guesses {
	if d.guesses == nil {
		d.guesses = make(map[string]*guesses)
	}
	g := d.guesses[from]
	if g == nil && len(d.guesses) >= addresses {
		for other, one := range d.guesses {
			if now.Sub(one.at) > guessesAtOnce*guessEvery { // it has all of its guesses again
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
