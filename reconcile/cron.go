package reconcile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Cron returns a schedule with the five fields of a cron expression: minute,
// hour, day of the month, month, day of the week. A field is "*", a number, a
// range "1-5", a list "1,15", or one of these with a step "*/10". Months and
// days of the week have names as well (jan, mon); Sunday is 0 or 7. As in cron,
// a day has to match only one of the two fields of days if neither is "*". The
// names @hourly, @daily, @weekly, @monthly and @yearly are expressions, too.
//
// The fields are in the time zone of the argument of Next, which for a job is
// the local one; "CRON_TZ=Europe/Berlin " in front sets another. When clocks go
// back, a time of the repeated hour comes twice; when they go forward, a time
// of the missing hour does not come that day.
func Cron(expression string) (Schedule, error) {
	c, err := parseCron(expression)
	if err != nil {
		return nil, fmt.Errorf("reconcile: cron expression %q: %w", expression, err)
	}
	return c, nil
}

// MustCron is [Cron] for expressions in the code: it panics if one is invalid.
func MustCron(expression string) Schedule {
	s, err := Cron(expression)
	if err != nil {
		panic(err)
	}
	return s
}

// cron is a parsed expression: a bit for each value of a field.
type cron struct {
	minute, hour, day, month, weekday uint64
	// anyDay and anyWeekday mean that the field begins with "*".
	anyDay, anyWeekday bool
	zone               *time.Location // nil: that of the argument
}

var cronNames = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// cronField is the range of a field.
type cronField struct {
	name     string
	min, max int
	words    []string // names of the values from min on
}

var cronFields = []cronField{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of the month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of the week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

func parseCron(text string) (*cron, error) {
	c := &cron{}
	if zone, rest, ok := strings.Cut(text, " "); ok && strings.HasPrefix(zone, "CRON_TZ=") {
		var err error
		if c.zone, err = time.LoadLocation(strings.TrimPrefix(zone, "CRON_TZ=")); err != nil {
			return nil, err
		}
		text = rest
	}
	text = strings.ToLower(strings.TrimSpace(text))
	if strings.HasPrefix(text, "@") {
		named, ok := cronNames[text]
		if !ok {
			return nil, errors.New("unknown name; @hourly, @daily, @weekly, @monthly and @yearly are known")
		}
		text = named
	}
	fields := strings.Fields(text)
	if len(fields) != len(cronFields) {
		return nil, fmt.Errorf("%d fields, want 5: minute, hour, day of the month, month, day of the week", len(fields))
	}
	for i, into := range []*uint64{&c.minute, &c.hour, &c.day, &c.month, &c.weekday} {
		bits, err := cronFields[i].parse(fields[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cronFields[i].name, err)
		}
		*into = bits
	}
	c.weekday |= c.weekday >> 7 & 1 // Sunday
	c.anyDay, c.anyWeekday = strings.HasPrefix(fields[2], "*"), strings.HasPrefix(fields[4], "*")
	if c.next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("no such day exists")
	}
	return c, nil
}

// parse returns the values of a field as bits.
func (f *cronField) parse(text string) (bits uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return 0, fmt.Errorf("step %q is not a positive number", stepText)
			}
		}
		first, last, err := f.span(span, stepped)
		if err != nil {
			return 0, err
		}
		for v := first; v <= last; v += min(step, f.max+1) { // a larger step could overflow
			bits |= 1 << v
		}
	}
	return bits, nil
}

// span returns the first and the last value of "*", a value or a range. A value
// with a step is a range to the end of the field.
func (f *cronField) span(text string, stepped bool) (first, last int, err error) {
	if text == "*" {
		return f.min, f.max, nil
	}
	from, to, ranged := strings.Cut(text, "-")
	if first, err = f.value(from); err != nil {
		return 0, 0, err
	}
	last = first
	switch {
	case ranged:
		last, err = f.value(to)
	case stepped:
		last = f.max
	}
	if err == nil && first > last {
		err = fmt.Errorf("%q ends before it begins", text)
	}
	return first, last, err
}

// value returns the number of a value.
func (f *cronField) value(text string) (int, error) {
	for i, word := range f.words {
		if text == word {
			return f.min + i, nil
		}
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < f.min || v > f.max {
		return 0, fmt.Errorf("%q is not between %d and %d", text, f.min, f.max)
	}
	return v, nil
}

// Next implements [Schedule].
func (c *cron) Next(after time.Time) time.Time {
	zone := after.Location()
	if c.zone != nil {
		zone = c.zone
	}
	return c.next(after.In(zone)).In(after.Location())
}

// cronYears is how far next looks: February 29 can be eight years away, and
// fall on a day of the week much later only if both fields must match, which
// they need not.
const cronYears = 9

// next returns the first matching minute after a time, in its time zone; the
// zero time if there is none. Each step goes forward in absolute time, so that
// changes of the clock cannot stop it.
func (c *cron) next(after time.Time) time.Time {
	t := after.Truncate(time.Minute).Add(time.Minute)
	for limit := after.AddDate(cronYears, 0, 0); t.Before(limit); {
		year, month, day := t.Date()
		switch {
		case c.month>>month&1 == 0:
			t = later(t, time.Date(year, month+1, 1, 0, 0, 0, 0, t.Location()))
		case !c.matchesDay(t):
			t = later(t, time.Date(year, month, day+1, 0, 0, 0, 0, t.Location()))
		case c.hour>>t.Hour()&1 == 0:
			t = t.Add(time.Duration(60-t.Minute()) * time.Minute)
		case c.minute>>t.Minute()&1 == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

// later returns a beginning of a day, or an hour later than t where midnight
// does not exist that day and the beginning is not after t.
func later(t, midnight time.Time) time.Time {
	if midnight.After(t) {
		return midnight
	}
	return t.Add(time.Hour)
}

func (c *cron) matchesDay(t time.Time) bool {
	day, weekday := c.day>>t.Day()&1 == 1, c.weekday>>t.Weekday()&1 == 1
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}
