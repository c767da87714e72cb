package main

import (
	"slices"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, tc := range []struct {
		sorted []int
		q      float64
		want   int
	}{
		{nil, 0.5, 0},
		{[]int{7}, 0, 7},
		{[]int{7}, 0.99, 7},
		{[]int{1, 2}, 0.5, 1},
		{[]int{1, 2, 3}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := quantile(tc.sorted, tc.q); got != tc.want {
			t.Errorf("quantile of %d values at %v is %d, want %d", len(tc.sorted), tc.q, got, tc.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		xs   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}} {
		before := slices.Clone(tc.xs)
		if got := median(tc.xs); got != tc.want {
			t.Errorf("median of %v is %v, want %v", tc.xs, got, tc.want)
		}
		if !slices.Equal(before, tc.xs) {
			t.Errorf("median sorted its argument: %v", tc.xs)
		}
	}
}

func TestRatiosPairRounds(t *testing.T) {
	if got := ratios([]float64{10, 30}, []float64{20, 10, 5}); !slices.Equal(got, []float64{0.5, 3}) {
		t.Errorf("ratios: %v", got)
	}
	if got := ratios([]float64{10}, nil); len(got) != 0 {
		t.Errorf("ratios to nothing: %v", got)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{thousands(0), "0"},
		{thousands(999.4), "999"},
		{thousands(1000), "1,000"},
		{thousands(1234567), "1,234,567"},
		{thousands(-1234), "-1,234"},
		{rate(12.34), "12.3"},
		{rate(0), "0"},
		{rate(123456), "123,456"},
		{latency(0), "0 µs"},
		{latency(42 * time.Microsecond), "42 µs"},
		{latency(1234 * time.Microsecond), "1.23 ms"},
		{latency(12340 * time.Microsecond), "12.3 ms"},
		{latency(123 * time.Millisecond), "123 ms"},
		{latency(1250 * time.Millisecond), "1.2 s"},
		{latency(12 * time.Second), "12 s"},
		{size(10_000), "10k"},
		{size(1_000_000), "1M"},
		{size(1_500_000), "1500k"},
		{size(42), "42"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestParseSizes(t *testing.T) {
	got, err := parseSizes("10k, 1m,2500")
	if err != nil || !slices.Equal(got, []int{10_000, 1_000_000, 2500}) {
		t.Errorf("parseSizes: %v, %v", got, err)
	}
	for _, text := range []string{"", "k", "0", "-1", "1g", "10k,", "1000m", "9999999999999999999m"} {
		if got, err := parseSizes(text); err == nil {
			t.Errorf("%q was taken for %v", text, got)
		}
	}
}

func TestParseSink(t *testing.T) {
	for text, want := range map[string]time.Duration{"noop": 0, "1ms": time.Millisecond, "0s": 0} {
		if got, err := parseSink(text); err != nil || got != want {
			t.Errorf("parseSink(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "fast", "-1ms"} {
		if _, err := parseSink(text); err == nil {
			t.Errorf("%q was taken for a sink", text)
		}
	}
}

// TestInterval: the interval of the median leaves out as many values at both
// ends as 95 % confidence allows.
func TestInterval(t *testing.T) {
	for n, want := range map[int]int{1: 0, 5: 0, 6: 0, 8: 0, 9: 1, 12: 2, 20: 5, 50: 17} {
		xs := make([]float64, n)
		for i := range xs {
			xs[i] = float64((i*7 + 3) % n) // each value once, unless 7 divides n
		}
		low, high := interval(xs)
		if low != float64(want) || high != float64(n-1-want) {
			t.Errorf("of %d values: %v to %v, want %d to %d", n, low, high, want, n-1-want)
		}
	}
	if low, high := interval(nil); low != 0 || high != 0 {
		t.Errorf("of no values: %v to %v", low, high)
	}
	if got, want := percents([]float64{0.5, 1, 2}), "100 % (50–200)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
