package settings

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// slot parses the text of a setting into its field, and formats the field.
type slot interface {
	set(text string) error
	show() string
}

// off is the text that disables a feature; in a Config of the library that is a
// negative number.
const off = "off"

type textSlot struct{ p *string }

func (s textSlot) set(text string) error { *s.p = text; return nil }
func (s textSlot) show() string          { return mask(*s.p) } // a URL with a password may be set by mistake

type secretSlot struct{ p *Secret }

func (s secretSlot) set(text string) error { *s.p = NewSecret(text); return nil }
func (s secretSlot) show() string          { return s.p.String() }

type switchSlot struct{ p *bool }

func (s switchSlot) set(text string) error {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "1":
		*s.p = true
	case "false", "no", off, "0":
		*s.p = false
	default:
		return fmt.Errorf("%q is not true or false", text)
	}
	return nil
}
func (s switchSlot) show() string { return strconv.FormatBool(*s.p) }

type choiceSlot struct {
	p     *string
	among []string
}

func (s choiceSlot) set(text string) error {
	if !slices.Contains(s.among, text) {
		return fmt.Errorf("%q is not one of %s", text, strings.Join(s.among, ", "))
	}
	*s.p = text
	return nil
}
func (s choiceSlot) show() string { return *s.p }

// numberSlot holds a number of at least min. With allowOff, "off" is stored as
// -1.
type numberSlot struct {
	p        *int
	min      int
	allowOff bool
}

func (s numberSlot) set(text string) error {
	if s.allowOff && (text == off || text == "-1") {
		*s.p = -1
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", text)
	}
	if n < s.min {
		return fmt.Errorf("%d is less than the minimum %d", n, s.min)
	}
	*s.p = n
	return nil
}

func (s numberSlot) show() string {
	if s.allowOff && *s.p < 0 {
		return off
	}
	return strconv.Itoa(*s.p)
}

// durationSlot holds a duration. With zero, 0 is valid; with allowOff, "off" is
// stored as -1.
type durationSlot struct {
	p              *time.Duration
	zero, allowOff bool
}

func (s durationSlot) set(text string) error {
	if s.allowOff && (text == off || text == "-1") {
		*s.p = -1
		return nil
	}
	d, err := ParseDuration(text)
	switch {
	case err != nil:
		return err
	case d < 0:
		return fmt.Errorf("%s is negative", text)
	case d == 0 && !s.zero:
		return errors.New("must be greater than 0")
	}
	*s.p = d
	return nil
}

func (s durationSlot) show() string {
	if s.allowOff && *s.p < 0 {
		return off
	}
	return FormatDuration(*s.p)
}

// seriesSlot holds comma-separated durations.
type seriesSlot struct{ p *[]time.Duration }

func (s seriesSlot) set(text string) error {
	var series []time.Duration
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		d, err := ParseDuration(part)
		if err != nil {
			return err
		}
		if d < 0 {
			return fmt.Errorf("%s is negative", part)
		}
		series = append(series, d)
	}
	*s.p = series
	return nil
}

func (s seriesSlot) show() string {
	parts := make([]string, len(*s.p))
	for i, d := range *s.p {
		parts[i] = FormatDuration(d)
	}
	return strings.Join(parts, ",")
}

// listSlot holds names. With blank, a name may be empty.
type listSlot struct {
	p     *[]string
	blank bool
}

// set parses names separated by commas.
func (s listSlot) set(text string) error {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return s.take(parts)
}

// take takes the names of a list in the file, which may contain commas.
func (s listSlot) take(names []string) error {
	if len(names) == 0 {
		return errors.New("the list is empty; omit it to select all")
	}
	for i, name := range names {
		if name == "" && !s.blank {
			return errors.New("a name is empty")
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("%q is in the list twice", name)
		}
	}
	*s.p = names
	return nil
}

func (s listSlot) show() string {
	shown := make([]string, len(*s.p))
	for i, name := range *s.p {
		if shown[i] = mask(name); name == "" {
			shown[i] = `""`
		}
	}
	return strings.Join(shown, ",")
}

// rateSlot holds a number of events per second; "off" is stored as 0.
type rateSlot struct{ p *float64 }

// rateUnits are the units of rates, with their lengths in seconds.
var rateUnits = []struct {
	name    string
	seconds float64
}{{"s", 1}, {"m", 60}, {"h", 3600}}

func (s rateSlot) set(text string) error {
	if text == off {
		*s.p = 0
		return nil
	}
	digits, unit, has := strings.Cut(text, "/")
	if !has {
		unit = "s"
	}
	n, err := strconv.ParseFloat(digits, 64)
	for _, u := range rateUnits {
		if err == nil && u.name == unit && !math.IsNaN(n) && !math.IsInf(n, 0) {
			if n <= 0 {
				return fmt.Errorf("%s is not greater than 0", text)
			}
			*s.p = n / u.seconds
			return nil
		}
	}
	return fmt.Errorf("%q is not a rate; write 50/s, 3000/m, 100000/h, or a number of events per second", text)
}

// show formats the rate with the first unit in which it is a whole number.
func (s rateSlot) show() string {
	if *s.p == 0 {
		return off
	}
	for _, u := range rateUnits {
		n := *s.p * u.seconds
		if whole := math.Round(n); whole > 0 && math.Abs(n-whole) < 1e-9*whole {
			return strconv.FormatFloat(whole, 'f', -1, 64) + "/" + u.name
		}
	}
	return strconv.FormatFloat(*s.p, 'f', -1, 64) + "/s"
}

const day = 24 * time.Hour

// ParseDuration parses a duration in Go's format with an additional unit for
// days: 200ms, 1m30s, 7d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration; write 200ms, 5s, 10m, 1h or 7d", text)
	days, rest, has := strings.Cut(text, "d")
	if !has {
		rest = text
	}
	var sum time.Duration
	if has {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > 100_000 {
			return 0, wrong
		}
		sum = time.Duration(n) * day
		if rest == "" {
			return sum, nil
		}
	}
	if rest == "0" {
		return sum, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || has && d < 0 {
		return 0, wrong
	}
	return sum + d, nil
}

// FormatDuration formats a duration so that [ParseDuration] reads it, without
// zero parts.
func FormatDuration(d time.Duration) string {
	if d < day {
		return short(d)
	}
	text := strconv.Itoa(int(d/day)) + "d"
	if d%day != 0 {
		text += short(d % day)
	}
	return text
}

func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = text[:len(text)-2]
	}
	if strings.HasSuffix(text, "h0m") {
		text = text[:len(text)-2]
	}
	return text
}
