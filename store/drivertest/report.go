package drivertest

import (
	"fmt"
	"strings"
)

// Report is the result of a suite: one entry per behavior of the suite, in a
// fixed order.
type Report []Entry

// Entry is the result of the checks of one behavior.
type Entry struct {
	// Name is the name of the behavior, and of the subtest with its checks.
	Name string
	// Title describes the behavior.
	Title  string
	Result Result
	// Reason is the reason why a behavior is unsupported.
	Reason string
}

// Result is the result of the checks of a behavior.
type Result string

const (
	// Passed means that every check ran and passed.
	Passed Result = "yes"
	// Unsupported means that the store lacks a feature or a role that a check
	// needs.
	Unsupported Result = "no"
	// Incomplete means that a check failed or did not run.
	Incomplete Result = "-"
)

// Complete reports whether no entry is incomplete.
func (r Report) Complete() bool {
	for _, e := range r {
		if e.Result == Incomplete {
			return false
		}
	}
	return true
}

// String returns the report as text, one behavior per line.
func (r Report) String() string {
	var text strings.Builder
	for _, e := range r {
		fmt.Fprintf(&text, "%-38s %-48s %s", e.Name, e.Title, e.Result)
		if e.Reason != "" {
			text.WriteString(": " + e.Reason)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// behavior is something that stores do, and that one or more checks verify.
type behavior struct{ name, title string }

// behaviors returns the behaviors, in the order of the report.
func behaviors() []behavior {
	return []behavior{
		{"rollback_leaves_nothing", "a rollback leaves nothing behind"},
		{"commit_keeps_rows", "a commit keeps the rows and is published once"},
		{"no_write_without_a_transaction", "no write without an open transaction"},
		{"write_order", "several writes keep their order"},
		{"empty_write", "an empty write does nothing"},
		{"hooks_before_the_write", "BeforeWrite changes, suppresses, fails"},
		{"hooks_change_nothing_after_the_write", "hooks after the write change nothing"},
		{"invalid_events_are_rejected_first", "limits are checked before any SQL runs"},
		{"written_events_are_copies", "later changes do not affect a written event"},
		{"ids_increase", "ids strictly increase"},
		{"dedup_key_absorbs_repeats", "one pending event per dedup key"},
		{"plain_sql_is_enough", "plain SQL inserts"},
		{"savepoints_are_respected", "savepoints, with the driver's API"},
		{"savepoints_in_sql_are_respected", "savepoints, with SQL text"},
		{"tracked_events_survive_a_rollback", "Track writes the events of aggregates"},
		{"transaction_belongs_to_intx", "InTx owns the transaction"},
		{"large_transactions", "20,000 events and 40 MiB in one transaction"},
		{"late_commits_are_found", "a row that commits late is found"},
		{"transaction_in_the_context", "the transaction in the context"},
		{"canceled_contexts", "canceled contexts"},
		{"joined_transactions", "joining a transaction"},
		{"rejected_writes", "a write that the database rejects"},
		{"foreign_transactions", "transactions that the caller commits"},
		{"commits_are_published_once", "the hub receives every commit once"},
		{"fields_are_stored_unchanged", "every field is read as it was written"},
		{"payloads_are_stored_unchanged", "payloads are read byte for byte"},
		{"headers_are_stored_unchanged", "headers, including corrupt ones"},
		{"origin_from_the_context", "origin from the context"},
		{"delays", "delays, by the database's clock"},
		{"committed_resolves", "Committed is correct or reports uncertainty"},
		{"random_transactions", "random transactions match a model"},
		{"fetch", "Fetch"},
		{"sweep", "Sweep"},
		{"load", "Load"},
		{"page_size", "pages of at most 8 MiB"},
		{"due", "Due"},
		{"reads_see_committed_rows", "reads see committed rows only"},
		{"holds", "Holds"},
		{"fetch_aggregate", "FetchAggregate"},
		{"fetch_priority", "FetchPriority"},
		{"drawn_seqs", "OpenWriters: drawn seqs"},
		{"open_writers", "OpenWriters: open transactions"},
		{"membership", "heartbeats and membership"},
		{"node_reports", "reports of nodes"},
		{"rollups", "counts of deliveries"},
		{"one_relay_per_outbox", "one outbox has one relay"},
		{"acquire_free_lanes", "acquiring free lanes"},
		{"takeover_from_a_dead_node", "takeover from a dead node"},
		{"release_lanes", "releasing lanes"},
		{"leave", "leaving"},
		{"one_winner_per_lane", "every lane has one winner"},
		{"settle_done", "done, with and without history"},
		{"settle_retry", "retry"},
		{"settle_dead", "dead"},
		{"settle_mixed", "mixed settlements"},
		{"stale_owner_fenced", "the fence of a settlement"},
		{"settle_missing_rows", "missing rows"},
		{"stored_errors", "stored errors"},
		{"stale_owner_during_takeover", "a stale owner during a takeover"},
		{"effect_and_settlement_together", "Finish, in the caller's transaction"},
		{"accept_events", "accepting events for a group"},
		{"claim_events", "claiming events for a group"},
		{"overtaken_attempts_roll_back", "success under a claim"},
		{"due_records", "due records"},
		{"last_applied", "events that a group applied last"},
		{"claim_keys", "claiming idempotency keys"},
		{"concurrent_key_claims", "concurrent claims of a key"},
		{"end_keys", "ends of attempts"},
		{"take_keys", "taking keys in a transaction"},
		{"claimed_keys", "answers, points and leases under a claim"},
		{"stored_answers", "stored answers"},
		{"inspect_keys", "inspecting and resolving keys"},
		{"purge_keys", "purging keys"},
		{"jobs_run_on_one_node", "one node at a time runs a job"},
		{"sent_and_remembered_together", "events sent by jobs"},
		{"forget_sent_events", "forgetting sent events"},
		{"delivered_without_record", "events delivered without a record"},
		{"stats", "Stats"},
		{"count_and_list", "Count and List"},
		{"find", "Find"},
		{"replay", "Replay"},
		{"discard", "Discard"},
		{"unblock", "Unblock"},
		{"purge_respects_retention", "Purge"},
		{"purge_written_and_make_ready", "PurgeWritten and MakeReady"},
		{"tidy", "Tidy"},
		{"set_lanes", "SetLanes"},
		{"restored", "positions after a restored backup"},
		{"causes", "causes of dead letters"},
		{"audit", "records of the changes of operators"},
		{"destinations", "the registry of destinations"},
		{"divert", "diverting events to backlogs"},
		{"backlog_reads", "reads of a backlog"},
		{"backlog_inspect", "inspecting a backlog"},
		{"backlog_settle", "settlements of a backlog"},
		{"backlog_dead_letters", "dead letters of a backlog"},
		{"refill", "refilling a backlog from the history"},
	}
}
