package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// chart is a plot of horizontal bars.
type chart struct {
	title    string
	subtitle []string
	footer   []string
	groups   []barGroup
	value    func(x float64) string // the format beside a bar
	axis     func(x float64) string // the format below a logarithmic scale
	// log draws on a logarithmic scale, for values that are orders of magnitude
	// apart.
	log bool
	// minimum is the lowest possible start of a logarithmic scale.
	minimum float64
	// pair names the two values of a bar, where bars have two.
	pair [2]string
}

// barGroup is bars that are compared with each other.
type barGroup struct {
	title string
	mark  float64 // a line across the bars: the floor
	bars  []bar
}

// head returns the height above the bars.
func (g barGroup) head() float64 {
	if g.title == "" {
		return 20
	}
	return groupPitch
}

type bar struct {
	name  string
	role  role
	value float64
	more  float64 // the second value of a pair, not less than the first
	note  string
}

// The dimensions of a chart, in the units of its view box: a 16:9 slide has
// 1280 × 720.
const (
	chartWidth  = 1280
	margin      = 48
	nameSize    = 18
	noteSize    = 15
	barHeight   = 24
	barPitch    = 36
	groupPitch  = 46
	titleHeight = 72 // plus a line for each line of the subtitle
	lineHeight  = 24
	footHeight  = 22
	// charWidth is the width of a letter as a fraction of its size: more than
	// common fonts need, so that texts never overlap.
	charWidth = 0.58
	boldWidth = 1.12
)

// palette holds the colors of a role: of a bar, and of the longer part of a
// pair.
var palette = map[role][2]string{
	roleFloor: {"#9aa5b1", "#cbd2d9"},
	roleOwn:   {"#0b7a75", "#8fd0cb"},
	rolePeer:  {"#6b8fb5", "#c3d4e6"},
}

func textWidth(s string, size float64) float64 { return float64(len([]rune(s))) * size * charWidth }

// halo keeps text on top of a line legible.
const halo = `paint-order="stroke" stroke="#ffffff" stroke-width="5" stroke-linejoin="round"`

// drawing collects elements.
type drawing struct{ strings.Builder }

func (d *drawing) text(x, y float64, size int, attributes, s string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" font-size="%d" %s>`, x, y, size, attributes)
	_ = xml.EscapeText(d, []byte(s))
	d.WriteString("</text>\n")
}

func (d *drawing) rect(x, y, w, h float64, fill string) {
	fmt.Fprintf(d, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="3" fill="%s"/>`+"\n", x, y, w, h, fill)
}

func (d *drawing) line(x, y1, y2 float64, attributes string) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x, y1, x, y2, attributes)
}

// scale maps values to widths.
type scale struct {
	log        bool
	from, to   float64
	left, wide float64
}

func (s scale) x(v float64) float64 {
	if !s.log {
		return s.left + s.wide*v/s.to
	}
	v = min(max(v, s.from), s.to)
	return s.left + s.wide*math.Log(v/s.from)/math.Log(s.to/s.from)
}

// layout computes the widths of names and labels, and the remaining width of
// the bars.
func (c chart) layout() scale {
	s := scale{log: c.log, to: 1}
	lowest := math.Inf(1)
	names, labels := 0.0, 0.0
	for _, g := range c.groups {
		s.to = max(s.to, g.mark)
		for _, b := range g.bars {
			s.to = max(s.to, b.value, b.more)
			if b.value > 0 {
				lowest = min(lowest, b.value)
			}
			names = max(names, textWidth(b.name, nameSize)*boldWidth)
			labels = max(labels, textWidth(c.label(b), nameSize)*boldWidth+textWidth("   "+b.note, noteSize))
		}
	}
	if c.log {
		if math.IsInf(lowest, 1) {
			lowest = 1
		}
		s.from = max(math.Pow(10, math.Floor(math.Log10(lowest))), c.minimum)
		s.to = max(math.Pow(10, math.Ceil(math.Log10(s.to))), 10*s.from)
	}
	s.left = margin + names + 14
	s.wide = max(chartWidth-margin-labels-14-s.left, 100)
	return s
}

// label returns the text after a bar.
func (c chart) label(b bar) string {
	if c.pair[0] == "" {
		return c.value(b.value)
	}
	return c.value(b.value) + " / " + c.value(b.more)
}

// svg draws the chart.
func (c chart) svg() []byte {
	top := titleHeight + float64(len(c.subtitle))*lineHeight + 6
	height := top
	for _, g := range c.groups {
		height += g.head() + float64(len(g.bars))*barPitch
	}
	if c.log {
		height += footHeight
	}
	bottom := height
	height += float64(len(c.footer))*footHeight + 40
	var d drawing
	fmt.Fprintf(&d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" font-family="Inter, Helvetica, Arial, sans-serif">`+"\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprintf(&d, `<rect width="%d" height="%.0f" fill="#ffffff"/>`+"\n", chartWidth, height)
	d.text(margin, 58, 32, `font-weight="700" fill="#1f2933"`, c.title)
	for i, line := range c.subtitle {
		d.text(margin, 90+float64(i)*lineHeight, 17, `fill="#52606d"`, line)
	}
	s := c.layout()
	if c.log {
		c.grid(&d, s, top, bottom)
	}
	y := top
	for _, g := range c.groups {
		y = c.group(&d, s, g, y)
	}
	for i, line := range c.footer {
		d.text(margin, bottom+34+float64(i)*footHeight, 14, `fill="#7b8794"`, line)
	}
	d.WriteString("</svg>\n")
	return []byte(d.String())
}

// grid draws the powers of ten of a logarithmic scale.
func (c chart) grid(d *drawing, s scale, top, bottom float64) {
	for v := s.from; v <= s.to*1.001; v *= 10 {
		d.line(s.x(v), top+8, bottom-footHeight, `stroke="#e4e7eb"`)
		d.text(s.x(v), bottom-4, 13, `fill="#7b8794" text-anchor="middle"`, c.axis(v))
	}
}

// group draws the bars of a group from y on, and returns the y of the next
// group.
func (c chart) group(d *drawing, s scale, g barGroup, y float64) float64 {
	if g.title != "" {
		d.text(margin, y+28, 16, `font-weight="600" fill="#52606d"`, g.title)
	}
	y += g.head()
	end := y + float64(len(g.bars))*barPitch
	if g.mark > 0 { // below the bars and their labels, which have a halo
		d.line(s.x(g.mark), y-6, end-barPitch+barHeight+6, `stroke="#d64545" stroke-width="1.5" stroke-dasharray="5 4"`)
	}
	for _, b := range g.bars {
		weight, color := "400", "#3e4c59"
		if b.role == roleOwn {
			weight, color = "700", "#0b5450"
		}
		base := y + barHeight/2 + nameSize*0.36
		d.text(s.left-14, base, nameSize, fmt.Sprintf(`font-weight=%q fill=%q text-anchor="end"`, weight, color), b.name)
		last := s.x(b.value)
		if b.more > b.value {
			last = s.x(b.more)
			d.rect(s.left, y, max(last-s.left, 2), barHeight, palette[b.role][1])
		}
		d.rect(s.left, y, max(s.x(b.value)-s.left, 2), barHeight, palette[b.role][0])
		label := c.label(b)
		d.text(last+10, base, nameSize, fmt.Sprintf(`font-weight=%q fill=%q `+halo, weight, color), label)
		if b.note != "" {
			wide := textWidth(label, nameSize)
			if b.role == roleOwn {
				wide *= boldWidth
			}
			d.text(last+20+wide, base, noteSize, `fill="#7b8794" `+halo, b.note)
		}
		y += barPitch
	}
	return end
}
