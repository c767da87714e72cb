package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// statementCounter counts the statements that pgx sends.
type statementCounter struct {
	n atomic.Int64

	// detailed makes it record the statements and their durations.
	detailed bool
	mu       sync.Mutex
	seen     map[string]*statementStat
}

// statementStat is the record of one statement.
type statementStat struct {
	text  string
	count int
	took  time.Duration
}

type startKey struct{}

type startedAt struct {
	sql  string
	when time.Time
}

// TraceQueryStart implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	if !c.detailed {
		return ctx
	}
	return context.WithValue(ctx, startKey{}, startedAt{d.SQL, time.Now()})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if s, ok := ctx.Value(startKey{}).(startedAt); ok {
		c.note(s.sql, time.Since(s.when))
	}
}

// TraceBatchStart implements pgx.BatchTracer.
func (c *statementCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	c.n.Add(int64(d.Batch.Len()))
	if !c.detailed {
		return ctx
	}
	return context.WithValue(ctx, startKey{}, startedAt{when: time.Now()})
}

// TraceBatchQuery implements pgx.BatchTracer.
func (c *statementCounter) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if s, ok := ctx.Value(startKey{}).(startedAt); ok {
		c.note(d.SQL, time.Since(s.when))
	}
}

// TraceBatchEnd implements pgx.BatchTracer.
func (c *statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (c *statementCounter) note(sql string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = make(map[string]*statementStat)
	}
	s := c.seen[sql]
	if s == nil {
		s = &statementStat{text: sql}
		c.seen[sql] = s
	}
	s.count++
	s.took += took
}

// forget starts a new list.
func (c *statementCounter) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = nil
}

// write lists the statements, the most expensive first, at most limit; 0: all.
func (c *statementCounter) write(out io.Writer, limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*statementStat
	for _, s := range c.seen {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *statementStat) int {
		return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.text, b.text))
	})
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  calls\ttotal\tmean\tstatement")
	for _, s := range list {
		fmt.Fprintf(w, "  %d\t%s\t%s\t%s\n", s.count, latency(s.took), latency(s.took/time.Duration(s.count)), shorten(s.text))
	}
	_ = w.Flush()
}

// shorten returns the head and the tail of a statement, on one line, without
// the columns between them.
func shorten(sql string) string {
	const head, tail = 60, 100
	text := []rune(strings.Join(strings.Fields(sql), " "))
	if len(text) <= head+tail {
		return string(text)
	}
	return string(text[:head]) + " … " + string(text[len(text)-tail:])
}
