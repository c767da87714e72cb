package browser

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

//go:embed testdata/axe.min.js.gz
var packedAxe []byte

// axe returns the program axe-core, which looks for what keeps people from
// using a page: without a mouse, with a screen reader, with weak eyes.
func axe() ([]byte, error) {
	packed, err := gzip.NewReader(bytes.NewReader(packedAxe))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(packed)
}

// finding is a violation of a rule of axe-core.
type finding struct {
	Rule, Impact, Help string
	// Elements are the first elements that violate the rule.
	Elements []string
}

// serious reports whether a finding keeps people from using the page.
func (f finding) serious() bool { return f.Impact == "serious" || f.Impact == "critical" }

func (f finding) String() string {
	return fmt.Sprintf("%s (%s): %s\n\t%s", f.Rule, f.Impact, f.Help, strings.Join(f.Elements, "\n\t"))
}

// findings returns the violations on the page. The program runs in the page
// like a command of its console, which its content security policy permits.
func (b *Tab) findings() []finding {
	b.t.Helper()
	program, err := axe()
	if err != nil {
		b.t.Fatal(err)
	}
	Value[bool](b, string(program)+`;
		window.axeFound = undefined;
		axe.run(document, {resultTypes: ['violations'], preload: false}).then(
			r => window.axeFound = r.violations.map(v => (
				{Rule: v.id, Impact: v.impact, Help: v.help, Elements: v.nodes.slice(0, 5).map(n => n.html + ' ' + n.failureSummary)})),
			e => window.axeFound = [{Rule: 'axe', Impact: 'critical', Help: String(e), Elements: []}]);
		true`)
	b.Until("window.axeFound !== undefined")
	return Value[[]finding](b, "window.axeFound")
}

// Accessible fails if axe-core has a serious finding, in light or in dark
// colors.
func (b *Tab) Accessible(where string) {
	b.t.Helper()
	for _, colors := range []string{"light", "dark"} {
		b.colors(colors)
		for _, f := range b.findings() {
			if f.serious() {
				b.t.Errorf("%s, %s colors: %s", where, colors, f)
			}
		}
	}
	b.colors("")
}

// colors sets the colors that the reader prefers; "" for those of the system.
func (b *Tab) colors(scheme string) {
	b.t.Helper()
	run(b, chromedp.Action[struct{}](func(ctx context.Context, _ *chromedp.Target) (struct{}, error) {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return struct{}{}, err
	}))
	// Colors that change gradually are neither of the one nor of the other.
	b.Until("document.getAnimations().length === 0")
}
