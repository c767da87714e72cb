package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"
)

func sampleDrain() (drainPlan, []drainFigure) {
	p := drainPlan{title: "postgres, 100k events, noop sink", size: 100_000, rounds: 2, limit: 4 * time.Second, drainers: []drainer{
		{name: floorName, group: dropped, role: roleFloor, yardstick: true},
		{name: "floor, 1000 a batch", group: dropped, role: roleFloor},
		{name: "waybill", group: dropped, role: roleOwn},
		{name: "a <peer> & \"co\"", group: dropped, role: rolePeer, paced: true},
		{name: "waybill", group: kept, role: roleOwn},
	}}
	second := func(events int) turn {
		return turn{events: events, took: time.Second, cost: gauge{statements: 100, server: time.Second, own: time.Second}}
	}
	cut := second(10)
	cut.cut = true
	return p, summarize(p.drainers, [][]turn{
		{second(200_000), second(100_000)},
		{second(210_000), second(210_000)},
		{second(150_000), second(80_000)},
		{cut, cut},
		{second(50_000), second(50_000)},
	})
}

func TestSummarize(t *testing.T) {
	_, figures := sampleDrain()
	own := figures[2]
	// 75 % in one round, 80 % in the other
	if own.rate() != 115_000 || own.ofFloor != 0.775 {
		t.Errorf("rate %v, of floor %v", own.rate(), own.ofFloor)
	}
	if !figures[3].cut || figures[2].cut {
		t.Error("who was cut short?")
	}
	if alone := figures[4]; alone.ofFloor != 0 {
		t.Errorf("a group without a floor is at %v of it", alone.ofFloor)
	}
}

func TestDrainTable(t *testing.T) {
	p, figures := sampleDrain()
	var out bytes.Buffer
	writeDrainTable(&out, p, "PostgreSQL 15.1", figures)
	for _, want := range []string{dropped, kept, "115,000", "78 %", "~10.0", "stopped after 4s", "median of 2 rounds"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func sampleSteady(perSecond int) (steadyPlan, []steadyFigure) {
	p := steadyPlan{title: "steady", producers: 8, rate: perSecond, turn: time.Second, rounds: 1, runners: []runner{
		{name: "waybill, no relay", role: roleFloor, ceiling: true}, {name: "waybill", role: roleOwn}, {name: "river, default", role: rolePeer},
	}}
	return p, p.summarize([][]steadyTurn{
		{{commits: 8000}},
		{{commits: 7600, delivered: 7600, p50: time.Millisecond, p99: 4 * time.Millisecond, max: 9 * time.Millisecond, events: 7600}},
		{{commits: 2000, delivered: 1000, p50: 3 * time.Second, p99: 5 * time.Second, max: 6 * time.Second, events: 2000, late: 1500, twice: 3}},
	})
}

func TestSteadyTable(t *testing.T) {
	p, figures := sampleSteady(0)
	var out bytes.Buffer
	p.write(&out, "PostgreSQL 15.1", figures)
	for _, want := range []string{"95 %", "1.00 ms", "4.00 ms", ">3.0 s", "had not handled 1,500 of 2,000", "3 events more than once"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// TestCharts checks that plots are XML, and that their texts stay on the page.
func TestCharts(t *testing.T) {
	p, figures := sampleDrain()
	s := &pgServer{version: "PostgreSQL 15.1"}
	closed, closedFigures := sampleSteady(0)
	open, openFigures := sampleSteady(2000)
	for name, c := range map[string]chart{
		"drain":  drainChart(p, &drainServer{version: "PostgreSQL 15.1"}, figures),
		"closed": closed.chart(s, closedFigures),
		"open":   open.chart(s, openFigures),
		"empty":  {title: "nothing", value: rate},
	} {
		t.Run(name, func(t *testing.T) {
			texts := checkSVG(t, c.svg())
			for _, g := range c.groups {
				for _, b := range g.bars {
					if !strings.Contains(texts, b.name) || !strings.Contains(texts, c.label(b)) {
						t.Errorf("the plot lacks %q or its value", b.name)
					}
				}
			}
		})
	}
}

// checkSVG reads a plot and returns its texts.
func checkSVG(t *testing.T, svg []byte) string {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	var texts strings.Builder
	var x, size float64
	var anchor string
	inText := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts.String()
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
		switch e := token.(type) {
		case xml.StartElement:
			inText = e.Name.Local == "text"
			anchor = ""
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "x":
					x = number(t, a.Value)
				case "font-size":
					size = number(t, a.Value)
				case "text-anchor":
					anchor = a.Value
				case "width", "height":
					if number(t, a.Value) < 0 {
						t.Errorf("a %s of %s", a.Name.Local, a.Value)
					}
				}
			}
		case xml.CharData:
			if !inText {
				continue
			}
			texts.WriteString(string(e) + "\n")
			left, right := x, x+textWidth(string(e), size)
			switch anchor {
			case "end":
				left, right = x-textWidth(string(e), size), x
			case "middle":
				left, right = x-textWidth(string(e), size)/2, x+textWidth(string(e), size)/2
			}
			if left < 0 || right > chartWidth {
				t.Errorf("%q reaches from %.0f to %.0f on a page of %d", e, left, right, chartWidth)
			}
		case xml.EndElement:
			inText = false
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Errorf("%q is not a number", text)
	}
	return x
}
