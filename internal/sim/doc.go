// Package sim runs Waybill against years of bad luck in minutes: a simulator
// that is driven by a seed, in virtual time, over the real code.
//
// # The world
//
// A world is one database and some processes. The database is a memstore behind
// a server that fails like a real one ([server]). A process is a real outbox, a
// real relay, a real inbox and real idempotency keys over a separate connection
// ([conn]), which implements the roles of package driver: every call of the
// product passes through it. A connection delays calls and answers, loses
// answers, refuses calls, applies calls after the caller has given up, and ends
// its process. Transactions commit late, roll back, or stay open. The sinks
// fail in every class, hang, answer late, panic and kill their process. An
// operator replays, discards and unblocks. Consumers and callers crash between
// any two steps.
//
// In a quarter of the worlds the relays have several destinations, each with
// its own sink, filter, retries, rate and pauses. Operators pause, resume and
// probe them, and send dead letters and history to one of them again.
//
// A world runs in a bubble of testing/synctest: hours of virtual time take
// milliseconds. It has a stormy phase, in which faults are drawn, and a calm
// phase without faults, after which every event must have arrived.
//
// # Seeds
//
// The seed decides the settings of the relay, the load, and every fault
// ([plan]). Each purpose has its own stream of random numbers, so that one more
// call of one kind does not change the draws of another. The fate of the nth
// delivery of an event depends only on the event and on n. Store calls take a
// random number of nanoseconds, so that hardly two things happen at the same
// instant. The order of goroutines inside one instant, the relay's own jitter
// and ids are not under the control of the seed: a seed reproduces nearly
// always, not always. Replays run a seed several times for that reason.
//
// # Checks
//
// The checks run on every delivery, settlement and commit ([checker]); they use
// a model of the tables that is built only from the calls and their answers:
//
//   - never lost: after the calm phase every committed event was delivered, is
//     a dead letter, or was discarded;
//   - never phantom: no event is delivered that was not committed;
//   - order: the first deliveries of an aggregate follow the order of commits;
//   - duplicates: every repeated delivery has a cause;
//   - fences: no delivery begins and no settlement counts under a lease that
//     is over, and no lane has two owners;
//   - attempts: an attempt is spent by a counted failure only, a dead letter
//     has used up its attempts or failed for good, and the delay after the nth
//     failure is the configured one;
//   - suspects: an event that was in flight in a process that died is counted
//     before it is delivered again;
//   - effects of consumers happen once, and one key has one answer;
//   - progress: what can be delivered is delivered within a bound, and memory
//     stays within its limits.
//
// With several destinations, the first seven hold for each of them: an event
// has a model of its row in the outbox, and one for every destination. In
// addition:
//
//   - filters: no event is delivered or copied to a destination that does not
//     take it;
//   - copies: an event that leaves the outbox was delivered to each destination
//     or is copied, with the attempts and the delay of a counted failure there;
//   - pauses: a process that has seen a pause begins no call;
//   - apart: while one destination is down, hangs or is paused, the others
//     receive new events within a bound.
//
// # Use
//
// Go test runs a few worlds. The flags -sim.for, -sim.seed and -sim.replay run
// for a time, run one seed, and run one shrunk case; see sim_test.go. A failure
// prints the seed, the virtual time and the last steps of the aggregate, and
// shrinks itself to a line for -sim.replay. Lines in testdata/cases.txt run
// always.
package sim
