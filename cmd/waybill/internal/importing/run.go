package importing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// Done is what an import does with the rows that it has written.
type Done int

const (
	// Leave leaves the rows as they are.
	Leave Done = iota
	// Mark marks the rows as delivered in the other system.
	Mark
	// Delete deletes the rows.
	Delete
)

// Defaults of [Options].
const (
	DefaultBatch = 500
	defaultLease = 30 * time.Second
)

// MaxBatch is the maximum number of rows in one transaction.
const MaxBatch = 10_000

// maxInvalid is the number of invalid rows that a report names.
const maxInvalid = 100

// everything is an age that includes every record.
const everything = 100 * 365 * 24 * time.Hour

// Options configure an import.
type Options struct {
	// Batch is the number of rows in one transaction. Defaults to
	// [DefaultBatch].
	Batch int
	// Limit is the maximum number of rows to import; 0: no limit.
	Limit int
	// DryRun reads the rows and writes nothing.
	DryRun bool
	// SkipInvalid continues after a row that cannot be an event.
	SkipInvalid bool
	// Done is what happens to the rows.
	Done Done
	// Lease is the time after which another import may continue if this one
	// dies. Defaults to 30 s.
	Lease time.Duration
	// Progress is called after each batch with the number of rows that were
	// read, and of those to read. Optional.
	Progress func(done, total int64)
	// Waiting is called if another import may still run, with the end of its
	// lease. Optional.
	Waiting func(until time.Time)
}

// Report is the result of an import.
type Report struct {
	Source string `json:"source"`
	Table  string `json:"table"`
	DryRun bool   `json:"dry_run,omitempty"`
	// Waiting is the number of rows that the other system has not delivered.
	Waiting int `json:"waiting"`
	// Imported is the number of written events; of a dry run, the number that
	// would be written.
	Imported int `json:"imported"`
	// Before is the number of rows that an earlier import has written.
	Before int `json:"imported_before"`
	// Gone is the number of rows that the other system delivered or deleted
	// while the import ran.
	Gone int `json:"gone"`
	// Marked and Deleted are the numbers of rows that were changed.
	Marked  int `json:"marked"`
	Deleted int `json:"deleted"`
	// Invalid is the number of rows that cannot be events. InvalidRows has the
	// first of them.
	Invalid     int        `json:"invalid"`
	InvalidRows []RowError `json:"invalid_rows,omitempty"`
	// More reports that the limit was reached.
	More bool `json:"more,omitempty"`
}

// RowError is a row that cannot be an event.
type RowError struct {
	ID      string `json:"id"`
	Problem string `json:"problem"`
}

// Error names the row.
func (e *RowError) Error() string { return fmt.Sprintf("row %s: %s", e.ID, e.Problem) }

// ErrBusy reports that another import of the table is running.
var ErrBusy = errors.New("another import of this table is running")

// importer is one import.
type importer struct {
	db      *Database
	st      *connect.Store
	plan    *Plan
	opts    Options
	box     *outbox.Outbox[*sql.Tx]
	attempt driver.JobAttempt
	renewed time.Time
	rep     Report
}

// Run imports the rows of a table. The report is valid with an error, too: it
// counts what was committed.
func Run(ctx context.Context, st *connect.Store, layout Layout, opts Options) (Report, error) {
	m := &importer{db: &Database{sql: st.SQL, kind: st.Kind}, st: st, opts: opts}
	if m.opts.Batch <= 0 {
		m.opts.Batch = DefaultBatch
	}
	if m.opts.Lease <= 0 {
		m.opts.Lease = defaultLease
	}
	m.rep.DryRun = opts.DryRun
	var err error
	if m.plan, err = layout.Plan(ctx, m.db); err != nil {
		return m.rep, err
	}
	m.rep.Source, m.rep.Table = m.plan.Source, m.plan.Table.String()
	if err := m.db.absolute(ctx, m.plan); err != nil {
		return m.rep, m.reading(err)
	}
	if opts.Done == Mark && m.plan.Mark == nil {
		return m.rep, hint.New("leave the rows, or use --delete", "%s has no state of its own that --mark could set", m.rep.Table)
	}
	if opts.Done == Mark && m.plan.MarksAll && opts.SkipInvalid {
		return m.rep, hint.New("correct the invalid rows, or leave the rows", "--mark sets an offset: rows that --skip-invalid skips would be behind it")
	}
	if m.box, err = outbox.New[*sql.Tx](st.InSQL, outbox.Config{}); err != nil {
		return m.rep, err
	}
	if opts.DryRun {
		m.attempt.Name = m.job()
		return m.rep, m.all(ctx)
	}
	if err := m.claim(ctx); err != nil {
		return m.rep, err
	}
	err = m.all(ctx)
	return m.rep, errors.Join(err, m.end(ctx, err))
}

// job returns the name of the job that records the rows.
func (m *importer) job() string { return "import:" + m.plan.Source + ":" + m.rep.Table }

// claim claims the job. An import that was killed holds it until its lease
// ends; one that renews its lease is running.
func (m *importer) claim(ctx context.Context) error {
	claim := driver.JobClaim{Name: m.job(), Owner: waybill.NewID(), Lease: m.opts.Lease, Seen: -1}
	var until time.Time
	for {
		m.renewed = time.Now()
		rec, held, err := m.st.InSQL.Jobs.ClaimJob(ctx, claim)
		if err != nil {
			return err
		}
		if held {
			m.attempt = driver.JobAttempt{Name: claim.Name, Owner: claim.Owner, Fence: rec.Fence}
			return nil
		}
		switch {
		case until.IsZero() && m.opts.Waiting != nil:
			m.opts.Waiting(rec.LeaseUntil)
		case !until.IsZero() && !rec.LeaseUntil.Equal(until):
			return ErrBusy
		}
		until = rec.LeaseUntil
		timer := time.NewTimer(min(max(rec.LeaseUntil.Sub(rec.Now), 10*time.Millisecond), time.Second))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// end releases the job and records the counts.
func (m *importer) end(ctx context.Context, failed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	end := driver.JobEnd{Found: m.rep.Waiting, Sent: m.rep.Imported, Skipped: m.rep.Before + m.rep.Gone, Failed: m.rep.Invalid}
	if failed != nil {
		end.Error = failed.Error()
	}
	_, err := m.st.InSQL.Jobs.EndJob(ctx, m.attempt, end)
	return err
}

// waiting is a row that the other system has not delivered.
type waiting struct {
	id     any // as the driver returned it
	text   string
	key    waybill.ID // under which the row is recorded
	before bool       // an earlier import has written it
}

// all imports the rows in batches.
func (m *importer) all(ctx context.Context) error {
	rows, err := m.list(ctx)
	if err != nil {
		return err
	}
	for from := 0; from < len(rows); {
		n := m.next(rows[from:])
		if n == 0 {
			m.rep.More = true
			return nil
		}
		if err := m.batch(ctx, rows[from:from+n]); err != nil {
			return err
		}
		from += n
		if m.opts.Progress != nil {
			m.opts.Progress(int64(from), int64(len(rows)))
		}
	}
	return nil
}

// next returns the number of rows of the next batch, which does not exceed the
// limit even if every row is imported.
func (m *importer) next(rows []waiting) int {
	fresh := 0
	for n, w := range rows[:min(m.opts.Batch, len(rows))] {
		if w.before {
			continue
		}
		if m.opts.Limit > 0 && m.rep.Imported+fresh == m.opts.Limit {
			return n
		}
		fresh++
	}
	return min(m.opts.Batch, len(rows))
}

// list returns the rows to read, in their order. Rows that an earlier import
// has written are among them if this import marks or deletes rows.
func (m *importer) list(ctx context.Context) ([]waiting, error) {
	sent, err := m.st.InSQL.Jobs.SentKeys(ctx, m.attempt.Name, everything)
	if err != nil {
		return nil, err
	}
	known := make(map[waybill.ID]bool, len(sent))
	for _, one := range sent {
		known[one.Key] = true
	}
	query, args := m.query([]string{m.plan.ID}, nil)
	query += " ORDER BY " + m.plan.Order
	if m.plan.Order == "" {
		query += m.plan.ID
	}
	rows, err := m.db.sql.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, m.reading(err)
	}
	defer rows.Close()
	var out []waiting
	seen := make(map[waybill.ID]bool)
	for rows.Next() {
		var w waiting
		if err := rows.Scan(&w.id); err != nil {
			return nil, m.reading(err)
		}
		if w.id, w.text, err = idOf(w.id); err != nil {
			return nil, fmt.Errorf("table %s: %w", m.rep.Table, err)
		}
		w.key = inbox.DedupID("", m.dedupKey(w.text))
		if seen[w.key] {
			return nil, hint.New("the id must be unique: choose another column or expression", "table %s: several rows have the id %s", m.rep.Table, w.text)
		}
		seen[w.key] = true
		m.rep.Waiting++
		w.before = known[w.key]
		if w.before && (m.opts.Done == Leave || m.opts.DryRun) {
			m.rep.Before++
			continue
		}
		out = append(out, w)
	}
	return out, m.reading(rows.Err())
}

// query returns a query of the rows that are not delivered: of all rows, or of
// those with certain ids.
func (m *importer) query(columns []string, ids []waiting) (string, []any) {
	var args []any
	bind := func(value any) string {
		args = append(args, value)
		return m.db.bind(len(args))
	}
	text := "SELECT "
	for i, column := range columns {
		if i > 0 {
			text += ", "
		}
		text += column
	}
	text += " FROM " + m.plan.Table.SQL + " WHERE 1 = 1"
	if m.plan.Where != nil {
		text += " AND (" + m.plan.Where(bind) + ")"
	}
	if ids != nil {
		text += " AND " + m.db.in(m.plan.ID, len(args)+1, len(ids))
		for _, w := range ids {
			args = append(args, w.id)
		}
	}
	return text, args
}

// dedupKey returns the dedup key of a row's event.
func (m *importer) dedupKey(id string) string {
	return waybill.DedupKey("import", m.plan.Source, m.rep.Table, id)
}

// reading adds a hint to an error of a query.
func (m *importer) reading(err error) error {
	if err == nil {
		return nil
	}
	return hint.New("check the expressions; columns of the table: "+names(m.plan.Table.Columns), "reading table %s: %w", m.rep.Table, err)
}

// restarts is the number of times a transaction is run again after a conflict.
const restarts = 10

// batch imports rows in one transaction and counts them after the commit.
func (m *importer) batch(ctx context.Context, rows []waiting) error {
	if m.opts.DryRun {
		b := &batch{importer: m, rows: rows}
		if err := b.read(ctx, m.db.sql, false); err != nil {
			return err
		}
		b.count(len(b.events))
		return nil
	}
	if err := m.renew(ctx); err != nil {
		return err
	}
	var b *batch
	try := func() error {
		b = &batch{importer: m, rows: rows}
		return m.box.InTx(ctx, b.write)
	}
	err := try()
	retry, _ := m.st.InSQL.Jobs.(driver.RetryClassifier)
	for n := 0; err != nil && n < restarts && retry != nil && retry.IsRetryable(err) && ctx.Err() == nil; n++ {
		err = try()
	}
	if errors.Is(err, waybill.ErrUncertain) {
		return hint.New("run the command again: rows that were imported are not imported again", "%w", err)
	}
	if err != nil {
		return err
	}
	b.count(b.written)
	return nil
}

// renew renews the lease of the job when a third of it has passed.
func (m *importer) renew(ctx context.Context) error {
	now := time.Now()
	if now.Sub(m.renewed) < m.opts.Lease/3 {
		return nil
	}
	held, err := m.st.InSQL.Jobs.RenewJob(ctx, m.attempt, m.opts.Lease)
	if err == nil && !held {
		err = ErrBusy
	}
	m.renewed = now
	return err
}
