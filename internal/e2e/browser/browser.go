// Package browser drives a real browser in tests.
//
// A step has a time limit of its own, and waits for what the page shows, so
// that a busy machine makes a test slow and not red. Elements are found and
// measured in the page: chromedp's own copy of the tree can lag behind on a
// busy machine, and then it waits for a node of a page that is gone.
package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/waybillhq/waybill/internal/testserver"
)

// patience is the time limit of one step. A busy machine needs seconds for it.
const patience = 2 * time.Minute

// Tab is a tab, and what went wrong in it.
type Tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// New starts a browser that ends with the test.
func New(t testing.TB) *Tab {
	t.Helper()
	program := testserver.Shell(t, "chromium")
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.WindowSize(1280, 800),
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	b := &Tab{t: t}
	b.ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The first step starts the browser, which ends with the context of that
	// step.
	if err := chromedp.Do(b.ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatal(err)
	}
	// Calls of the console, exceptions, and the log of the browser: violations
	// of the content security policy and files that do not exist.
	messages := chromedp.Console(b.ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.report(m.String())
		}
	}()
	return b
}

// report keeps a problem.
func (b *Tab) report(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, text)
}

// Clean fails if the browser has reported anything: a violation of the content
// security policy, an exception, a missing file.
func (b *Tab) Clean(where string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("%s: the browser reports %s", where, p)
	}
	b.problems = nil
}

// run does one step within its time limit.
func run[V any](b *Tab, step chromedp.Action[V]) V {
	b.t.Helper()
	v, err := try(b, step)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

func try[V any](b *Tab, step chromedp.Action[V]) (V, error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, step)
}

// Value returns the result of an expression.
func Value[V any](b *Tab, expression string) V {
	b.t.Helper()
	return run(b, chromedp.Evaluate[V](expression))
}

// Until waits until an expression is true. An expression that fails has met a
// page that is being replaced.
func (b *Tab) Until(expression string) {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		reached, err := try(b, chromedp.Evaluate[bool](expression))
		if reached && err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s does not become true (%v):\n%s", expression, err, b.Text())
		}
	}
}

// Open opens a page.
func (b *Tab) Open(address string) {
	b.t.Helper()
	run(b, chromedp.Navigate(address))
	b.Until(`document.readyState === 'complete' && document.querySelector('main') !== null`)
}

// Key presses keys.
func (b *Tab) Key(keys string) {
	b.t.Helper()
	run(b, chromedp.KeyEvent(keys))
}

// Click presses the middle of an element, as a mouse does, and waits for the
// page that follows to have the element of the selector next. The element is
// the result of an expression. An element that another one covers cannot be
// pressed.
func (b *Tab) Click(element, next string) {
	b.t.Helper()
	at := Value[[]float64](b, fmt.Sprintf(`(() => {
		const e = %s;
		if (!e) return [];
		e.scrollIntoView({block: 'center', behavior: 'instant'});
		const r = e.getBoundingClientRect();
		const [x, y] = [r.x + r.width / 2, r.y + r.height / 2];
		const top = document.elementFromPoint(x, y);
		if (top !== e && !e.contains(top)) return [];
		window.left = true;
		return [x, y];
	})()`, element))
	if len(at) != 2 {
		b.t.Fatalf("%s is not there, or something covers it:\n%s", element, b.Text())
	}
	run(b, chromedp.MouseClickXY(at[0], at[1]))
	b.Until(fmt.Sprintf(`!window.left && document.readyState === 'complete' && document.querySelector(%q) !== null`, next))
}

// Picture writes a picture of the page to a folder.
func (b *Tab) Picture(dir, name string) {
	b.t.Helper()
	png := run(b, chromedp.CaptureScreenshot())
	if len(png) < 5000 {
		b.t.Errorf("the picture %s has %d bytes", name, len(png))
	}
	if err := os.WriteFile(filepath.Join(dir, name), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Text returns the visible text of the page.
func (b *Tab) Text() string { return Value[string](b, "document.body.innerText") }

// Says fails if the page does not have all texts.
func (b *Tab) Says(texts ...string) {
	b.t.Helper()
	page := b.Text()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			b.t.Errorf("the page does not say %q:\n%s", text, page)
		}
	}
}
