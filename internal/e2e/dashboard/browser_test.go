package dashboard_test

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

// patience is the time limit for everything that the browser does.
const patience = 2 * time.Minute

// browser is a tab, and what went wrong in it.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	program := testserver.Shell(t, "chromium")
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.WindowSize(1280, 800),
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	b := &browser{t: t}
	b.ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b.run(chromedp.Navigate("about:blank")) // starts the browser
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
func (b *browser) report(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, text)
}

func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// clean fails if the browser has reported anything: a violation of the content
// security policy, an exception, a missing file.
func (b *browser) clean(where string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("%s: the browser reports %s", where, p)
	}
	b.problems = nil
}

// value returns the result of an expression.
func value[V any](b *browser, expression string) V {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[V](expression))
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		if value[bool](b, expression) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s does not become true:\n%s", expression, value[string](b, "document.body.innerText"))
		}
	}
}

// open opens a page and checks its outline.
func (b *browser) open(address string) {
	b.t.Helper()
	b.run(chromedp.Navigate(address), chromedp.WaitReady(chromedp.CSS("main")))
	for what, check := range map[string]string{
		"one heading of the first level": `document.querySelectorAll('h1').length === 1`,
		"captions":                       `[...document.querySelectorAll('table')].every(t => t.caption)`,
		"labels of all fields":           `[...document.querySelectorAll('input:not([type=hidden]),select')].every(i => i.labels.length || i.ariaLabel)`,
		"names of all buttons":           `[...document.querySelectorAll('button,a')].every(e => e.textContent.trim() !== '')`,
		"a style":                        `getComputedStyle(document.querySelector('.top')).display === 'flex'`,
	} {
		if !value[bool](b, check) {
			b.t.Errorf("%s lacks %s", address, what)
		}
	}
	b.clean(address)
}

// picture keeps a picture of the page: with -artifacts in the folder of the
// test, and with -pictures in docs.
func (b *browser) picture(name string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if len(png) < 5000 {
		b.t.Errorf("the picture %s has %d bytes", name, len(png))
	}
	dir := b.t.ArtifactDir()
	if *pictures {
		dir = filepath.Join("..", "..", "..", "docs")
	}
	if err := os.WriteFile(filepath.Join(dir, "dashboard-"+name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// submit opens the details that contain the form of an action and sends it.
func (b *browser) submit(action, with string) {
	b.t.Helper()
	if !value[bool](b, fmt.Sprintf(`(() => {
		const form = [...document.forms].find(f => f.getAttribute('action').endsWith('do/%s') && f.outerHTML.includes(%q));
		if (!form) return false;
		if (form.closest('details')) form.closest('details').open = true;
		form.dataset.chosen = '1';
		return true;
	})()`, action, with)) {
		b.t.Fatalf("no form for %s with %s:\n%s", action, with, value[string](b, "document.body.innerText"))
	}
	b.run(chromedp.Click(chromedp.CSS("form[data-chosen] button")), chromedp.WaitReady(chromedp.CSS(".notice[role=status]:not([hidden])")))
	b.clean(action)
}

// text returns the visible text of the page.
func (b *browser) text() string { return value[string](b, "document.body.innerText") }

// says fails if the page does not have all texts.
func (b *browser) says(texts ...string) {
	b.t.Helper()
	page := b.text()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			b.t.Errorf("the page does not say %q:\n%s", text, page)
		}
	}
}
