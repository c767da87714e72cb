package shop

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
)

var update = flag.Bool("update", false, "write the golden files")

// scene is a state of a demo that has run for a while.
func scene(t *testing.T) (*proof, numbers) {
	t.Helper()
	id, err := waybill.ParseID("01J9ZT6VB2E4X8K3M5N7P9QRST")
	if err != nil {
		t.Fatal(err)
	}
	p := &proof{
		took: 4321 * time.Microsecond, orders: 12702, pending: 4, history: 12698, applied: 12695, booked: 12650, ahead: 45, answers: 15021,
		products: []stock{{"tea", 100000, 91512, 4231, 8488, 4229}, {"coffee", 100000, 91633, 4230, 8367, 4230}, {"cocoa", 100000, 91422, 4241, 8578, 4236}},
		findings: [][]finding{nil, {{event: id, what: "was applied 2 times, and recorded 1 times"}}, nil, nil, nil},
	}
	n := numbers{
		After: 10*time.Minute + 35*time.Second, Requests: 16843, Asked: 1217, Relay: 312, Inventory: 109, ByKey: 2319, ByInbox: 214,
		Faults: 1504, Kinds: [faultCount]int{512, 608, 41, 38, 44, 40, 39, 35, 37, 36, 38, 36, 34}, Last: "10:34 " + faultInfos[keyInParallel].long, Closed: true,
	}
	return p, n
}

// TestFrame compares a frame with testdata/frame.txt, and checks that it fits a
// terminal of 80 columns and 24 lines.
func TestFrame(t *testing.T) {
	p, n := scene(t)
	s := &screen{words: (&Webhooks{}).Words(), seed: 7, url: "http://127.0.0.1:41234"}
	got := s.draw(p, n)
	const golden = "testdata/frame.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("the frame differs (go test ./demo/shop -run TestFrame -update writes it again):\n%s", got)
	}
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) > 23 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 && !strings.Contains(line, "✘") { // a finding is truncated here, and complete in the verdict
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	s.color = true
	colors := regexp.MustCompile("\x1b\\[[0-9]*m")
	if painted := s.draw(p, n); painted == got || colors.ReplaceAllString(painted, "") != got {
		t.Errorf("colors change the text:\n%s", painted)
	}
}

// TestRedraw checks that a frame replaces the previous one completely,
// including longer lines.
func TestRedraw(t *testing.T) {
	p, n := scene(t)
	var out buffer
	s := &screen{out: &out, redraw: true}
	s.frame(p, n)
	s.tell("nothing")
	first := len(out.String())
	s.frame(p, n)
	if second := out.String()[first:]; !strings.HasPrefix(second, "\x1b[23A\r") || strings.Count(second, "\x1b[K\n") != 23 || !strings.Contains(second, "\x1b[J") {
		t.Errorf("the frame does not replace the previous one: %q", second)
	}
}

// TestFrameKeepsItsHead checks that on a terminal of fewer rows the frame omits
// optional lines, and keeps its head and height.
func TestFrameKeepsItsHead(t *testing.T) {
	p, n := scene(t)
	for _, rows := range []int{0, 40, 24, 23, 20, 16, 12, 5, 2} {
		var out buffer
		s := &screen{out: &out, redraw: true, rows: func() int { return rows }}
		s.frame(p, n)
		drawn := strings.Count(out.String(), "\n")
		if rows > 0 && drawn > rows-1 || !strings.Contains(out.String(), "waybill demo") {
			t.Errorf("%d rows: %d lines drawn:\n%s", rows, drawn, out.String())
		}
		if rows >= 16 && !strings.Contains(out.String(), "proof") {
			t.Errorf("%d rows: the proof is not visible:\n%s", rows, out.String())
		}
	}
}
