package command

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

func unconfirmed(advice, format string, args ...any) error {
	return &coded{hint.New(advice, format, args...), Unconfirmed}
}

// confirm asks for a confirmation; yes confirms in advance. Without a terminal
// the answer is no.
func (a *app) confirm(yes bool, question string) error {
	return a.ask(yes, question+" [y/N] ", func(answer string) bool {
		answer = strings.ToLower(answer)
		return answer == "y" || answer == "yes"
	})
}

// confirmCount asks for the number of affected items, which cannot be typed by
// reflex.
func (a *app) confirmCount(yes bool, what string, n int64) error {
	return a.ask(yes, fmt.Sprintf("%s. Type %d to go on: ", what, n), func(answer string) bool { return answer == fmt.Sprint(n) })
}

func (a *app) ask(yes bool, question string, good func(answer string) bool) error {
	if yes {
		return nil
	}
	if !a.Interactive {
		return unconfirmed("add --yes", "confirmation required: %s", strings.TrimSuffix(strings.TrimSpace(question), ":"))
	}
	fmt.Fprint(a.Err, question)
	line, err := bufio.NewReader(a.In).ReadString('\n')
	if err != nil && line == "" {
		return unconfirmed("add --yes", "no answer to the confirmation")
	}
	if !good(strings.TrimSpace(line)) {
		return unconfirmed("nothing was changed", "not confirmed")
	}
	return nil
}

// bar shows the progress of long work on a terminal.
type bar struct {
	out   io.Writer // nil: no terminal
	what  string
	last  time.Time
	drawn bool
}

func (a *app) bar(what string) *bar {
	b := &bar{what: what}
	if a.Interactive {
		b.out = a.Err
	}
	return b
}

const barWidth = 30

// show draws the bar, or only the number without a total. It draws at most ten
// times a second, and always at the end.
func (b *bar) show(done, total int64) {
	if b.out == nil || done != total && time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.last, b.drawn = time.Now(), true
	if total <= 0 {
		fmt.Fprintf(b.out, "\r%s: %d", b.what, done)
		return
	}
	full := int(min(done, total) * barWidth / total)
	fmt.Fprintf(b.out, "\r%s: [%s%s] %d of %d", b.what, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), done, total)
}

// end ends the line of the bar.
func (b *bar) end() {
	if b.drawn {
		fmt.Fprintln(b.out)
	}
}
