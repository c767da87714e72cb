package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quantile returns the q-quantile of sorted values, by nearest rank: a measured
// value, and not an interpolated one.
func quantile[E any](sorted []E, q float64) E {
	if len(sorted) == 0 {
		var none E
		return none
	}
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// ratios pairs the turns of one round, which ran under the same conditions.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

func median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(xs))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// interval returns the 95 % confidence interval of the median, by order
// statistics. Fewer than six values do not give that confidence, and the
// interval is their range.
func interval(xs []float64) (low, high float64) {
	if len(xs) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(xs))
	n := len(sorted)
	// chance is the probability of i values below the median, and tail that of
	// fewer than k.
	k, chance, tail := 0, math.Pow(0.5, float64(n)), 0.0
	for i := 0; i < n/2; i++ {
		if tail += chance; tail > 0.025 {
			break
		}
		k = i
		chance *= float64(n-i) / float64(i+1)
	}
	return sorted[k], sorted[n-1-k]
}

// percents formats ratios: their median and its interval.
func percents(ratios []float64) string {
	low, high := interval(ratios)
	return fmt.Sprintf("%.0f %% (%.0f–%.0f)", 100*median(ratios), 100*low, 100*high)
}

// thousands formats a number with separators: 1,234,567.
func thousands(x float64) string {
	digits := strconv.FormatInt(int64(math.Round(math.Abs(x))), 10)
	var b strings.Builder
	if x < 0 && digits != "0" {
		b.WriteByte('-')
	}
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// rate formats events per second: small rates keep their fraction.
func rate(x float64) string {
	if x < 100 && x > 0 {
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return thousands(x)
}

// latency formats a duration with about three digits.
func latency(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%d µs", d.Microseconds())
}

// parseSize parses a number of events: 10k, 1m, 2500.
func parseSize(text string) (int, error) {
	unit, number := 1, strings.ToLower(strings.TrimSpace(text))
	if n, ok := strings.CutSuffix(number, "k"); ok {
		unit, number = 1000, n
	} else if n, ok := strings.CutSuffix(number, "m"); ok {
		unit, number = 1_000_000, n
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > maxNumber/unit {
		return 0, fmt.Errorf("%q is not a size; use 10k, 100k or 1m", text)
	}
	return n * unit, nil
}

// parseSizes parses comma-separated sizes.
func parseSizes(text string) ([]int, error) {
	var sizes []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := parseSize(part)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// size formats the number that parseSize parses.
func size(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + "M"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}
