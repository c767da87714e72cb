package words_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/words"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", time.Second: "1 s", 59 * time.Second: "59 s", 61 * time.Second: "1 min 1 s",
		10*time.Minute + 59*time.Second: "10 min", 3*time.Hour + time.Minute: "3 h 1 min", 26 * time.Hour: "1 d 2 h", 300 * 24 * time.Hour: "300 d",
	} {
		if got := words.Span(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// TestQuoted: a shell reads the word as it was.
func TestQuoted(t *testing.T) {
	for _, text := range []string{"billing", "", "O'Neill", "a b", "$(id)", "*", "a;b", "`x`", "\\", "é", "a@b:c/d,e+f"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+words.Quoted(text)).Output()
		if err != nil || string(out) != text {
			t.Errorf("%q becomes %q, %v", text, out, err)
		}
	}
	if got := words.Quoted("billing"); got != "billing" {
		t.Errorf("%q needs no quotes", got)
	}
}
