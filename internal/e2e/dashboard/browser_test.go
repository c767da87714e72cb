package dashboard_test

import (
	"fmt"
	"testing"

	"github.com/waybillhq/waybill/internal/e2e/browser"
)

// tab is a browser that knows the dashboard.
type tab struct {
	*browser.Tab
	t *testing.T
}

// open opens a page, and checks its outline and its accessibility.
func (b tab) open(address string) {
	b.t.Helper()
	b.Open(address)
	for what, check := range map[string]string{
		"one heading of the first level": `document.querySelectorAll('h1').length === 1`,
		"captions":                       `[...document.querySelectorAll('table')].every(t => t.caption)`,
		"labels of all fields":           `[...document.querySelectorAll('input:not([type=hidden]),select')].every(i => i.labels.length || i.ariaLabel)`,
		"names of all buttons":           `[...document.querySelectorAll('button,a')].every(e => e.textContent.trim() !== '')`,
		"a style":                        `getComputedStyle(document.querySelector('.top')).display === 'flex'`,
	} {
		if !browser.Value[bool](b.Tab, check) {
			b.t.Errorf("%s lacks %s", address, what)
		}
	}
	b.Accessible(address)
	b.Clean(address)
}

// picture keeps a picture of the page: with -artifacts in the folder of the
// test, and with -pictures in docs.
func (b tab) picture(name string) {
	b.t.Helper()
	dir := b.t.ArtifactDir()
	if *pictures && b.t.Name() == "TestSQLite" {
		dir = "../../../docs"
	}
	b.Picture(dir, "dashboard-"+name+".png")
}

// submit opens the details that contain the form of an action and sends it.
func (b tab) submit(action, with string) {
	b.t.Helper()
	b.Click(fmt.Sprintf(`(() => {
		const form = [...document.forms].find(f => f.getAttribute('action').endsWith('do/%s') && f.outerHTML.includes(%q));
		if (!form) return null;
		if (form.closest('details')) form.closest('details').open = true;
		return form.querySelector('button');
	})()`, action, with), ".notice[role=status]:not([hidden])")
	b.Clean(action)
}
