//! What the machine answers to every event in every state, for every kind of effects.
//!
//! [`TABLE`] is the contract, to be read. A line names events (`*` stands for any text), the effects it is about where
//! not all, and the result; the first line that matches counts. A pair of state and event that no line covers fails
//! the test, and so does a line that covers nothing.
//!
//! Events: `decide` (this request, `other` body, `accept`ed for later, under `gone`), `renew`, an attempt's end (`done`,
//! `not run`, `in doubt`), `sweep`, verdicts (`happened`, `happened bare`, `not found early`, `not found late`, `never`,
//! `shrug`, `shrug last`) by `/probe`, `/webhook`, `/operator`, also `/forced`, then `claim`, `cancel`, `commit`, `call`, `forget`,
//! `reap`, `due`. An event is by the record's own attempt, and a verdict about it, unless it says `foreign`. Verdicts about
//! other attempts, by evidence and by time have tables of their own in `verdict.rs`.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::history::{FIRST_KEPT, LAST_KEPT, TOKENS_KEPT, What};
use onlyonce_core::key::Key;
use onlyonce_core::machine::{
    self, About, ActionName, Admission, Backoff, Decision, Finish, Force, Forget, FromCopy, Renewal, Request,
    Ruled, Ruling, Standing,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::{OnExpired, Policy};
use onlyonce_core::record::{
    Asking, Calling, Draft, Effects, Reason, Record, Response, Seen, Source, State, Token, Verdict,
};
use onlyonce_core::refusal::Refusal;
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Due, Timestamp, When};
use proptest::prelude::*;

use crate::sample::{
    BACKOFF, FOREIGN, FRESH, HOUR, OWN, PAUSE_MAX, accepted, answer, at, completed, lapsed, pending, policy,
    print, record, retryable, ruling, said, seen,
};

const TABLE: &str = "
absent
    decide accept                                -> begin pending
    decide*                                      -> begin running 1
    renew*                                       -> lost
    done*, not run*, in doubt*                   -> superseded
    standing                                     -> absent
    *                                            -> nothing there

pending
    decide other                                 -> refuse key reused
    decide*                                      -> refuse in progress
    renew*                                       -> lost
    done*, not run*, in doubt*                   -> superseded
    sweep                                        -> nothing
    claim                                        -> running 1
    cancel                                       -> completed 408 by caller
    commit*, call*                              -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> in progress
    forget*                                      -> erased, fenced
    */webhook*                                   -> ignored, earlieruse
    */*                                          -> settled

pending expired
    decide other                                 -> refuse key reused
    decide*                                      -> refuse in progress
    renew*                                       -> lost
    done*, not run*, in doubt*                   -> superseded
    sweep                                        -> completed 408 by sweeper
    claim                                        -> nothing
    cancel                                       -> completed 408 by caller
    commit*, call*                              -> nothing
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget*                                      -> erased, fenced
    */webhook*                                   -> ignored, earlieruse
    */*                                          -> settled

pending in doubt, forgotten
    decide other                                 -> refuse key reused
    decide*                                      -> refuse in progress
    renew*                                       -> lost
    done*, not run*, in doubt*                   -> superseded
    sweep                                        -> unknown (downstreamforgot), asked later, in doubt
    claim                                        -> nothing
    cancel, commit*, call*                               -> nothing
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    */webhook*                                   -> ignored, earlieruse
    */*                                          -> settled

running
    decide other                                 -> refuse key reused
    decide*                                      -> refuse in progress
    renew                                        -> running 1
    renew foreign                                -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt [local]                             -> retryable
    in doubt [keyed]                             -> retryable, in doubt
    in doubt                                     -> unknown (connectionlost), asked later
    done foreign, not run foreign, in doubt foreign -> superseded
    commit                                       -> running 1, after charge
    call                                         -> running 1, calling
    commit foreign, call foreign, sweep, claim, cancel -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> in progress
    forget                                       -> still running
    forget forced                                -> erased, fenced
    happened/probe/forced                        -> completed 201 by probe, fenced
    happened/webhook/forced                      -> completed 201 by webhook, fenced
    happened/operator/forced                     -> completed 201 by operator, fenced
    happened bare/probe/forced                   -> completed bare by probe, fenced
    happened bare/webhook/forced                 -> completed bare by webhook, fenced
    happened bare/operator/forced                -> completed bare by operator, fenced
    not found*/forced, never/*/forced            -> retryable, fenced
    shrug*/forced [local]                        -> retryable
    shrug*/forced [keyed]                        -> retryable, in doubt
    shrug last/probe/forced                      -> unknown (lapsed), answered, not asked, dead letter
    shrug/probe/forced                           -> unknown (lapsed), answered, asked later
    shrug*/webhook/forced                        -> unknown (lapsed), asked later
    shrug*/operator/forced                       -> unknown (lapsed), asked now
    */webhook                                    -> running 1, evidence
    */probe, */operator                          -> still running

running lapsed
    decide other                                 -> refuse key reused
    decide accept [local]                        -> begin pending
    decide* [local]                              -> begin running 2
    decide accept [keyed]                        -> begin pending, in doubt
    decide* [keyed]                              -> begin running 2, in doubt
    decide*                                      -> settle unknown (lapsed), asked later
    renew                                        -> running 1
    renew foreign                                -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt [local]                             -> retryable
    in doubt [keyed]                             -> retryable, in doubt
    in doubt                                     -> unknown (connectionlost), asked later
    done foreign, not run foreign, in doubt foreign -> superseded
    commit                                       -> running 1, after charge
    call                                         -> running 1, calling
    commit foreign, call foreign, claim, cancel  -> nothing
    sweep [local]                                -> retryable
    sweep [keyed]                                -> retryable, in doubt
    sweep                                        -> unknown (lapsed), asked later
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget [local keyed]                         -> erased, fenced
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/probe/forced                        -> completed 201 by probe, fenced
    happened/webhook/forced                      -> completed 201 by webhook, fenced
    happened/operator/forced                     -> completed 201 by operator, fenced
    happened bare/probe/forced                   -> completed bare by probe, fenced
    happened bare/webhook/forced                 -> completed bare by webhook, fenced
    happened bare/operator/forced                -> completed bare by operator, fenced
    not found*/forced, never/*/forced            -> retryable, fenced
    happened/probe                               -> completed 201 by probe
    happened/webhook                             -> completed 201 by webhook
    happened/operator                            -> completed 201 by operator
    happened bare/probe                          -> completed bare by probe
    happened bare/webhook                        -> completed bare by webhook
    happened bare/operator                       -> completed bare by operator
    not found late/*, never/*                    -> retryable
    not found early/operator                     -> too early
    not found early/* [local]                    -> retryable
    not found early/* [keyed]                    -> retryable, in doubt
    not found early/*                            -> unknown (lapsed), asked when believed
    shrug* [local]                               -> retryable
    shrug* [keyed]                               -> retryable, in doubt
    shrug last/probe*                            -> unknown (lapsed), answered, not asked, dead letter
    shrug/probe*                                 -> unknown (lapsed), answered, asked later
    shrug*/webhook*                              -> unknown (lapsed), asked later
    shrug*/operator*                             -> unknown (lapsed), asked now

running past its deadline
    decide other                                 -> refuse key reused
    decide accept [local]                        -> begin pending
    decide* [local]                              -> begin running 2
    decide accept [keyed]                        -> begin pending, in doubt
    decide* [keyed]                              -> begin running 2, in doubt
    decide*                                      -> settle unknown (deadline), asked later
    renew                                        -> lost
    renew foreign                                -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt [local]                             -> retryable
    in doubt [keyed]                             -> retryable, in doubt
    in doubt                                     -> unknown (connectionlost), asked later
    done foreign, not run foreign, in doubt foreign -> superseded
    commit                                       -> running 1, after charge
    call                                         -> nothing
    commit foreign, call foreign, claim, cancel  -> nothing
    sweep [local]                                -> retryable
    sweep [keyed]                                -> retryable, in doubt
    sweep                                        -> unknown (deadline), asked later
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget [local keyed]                         -> erased, fenced
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/probe/forced                        -> completed 201 by probe, fenced
    happened/webhook/forced                      -> completed 201 by webhook, fenced
    happened/operator/forced                     -> completed 201 by operator, fenced
    happened bare/probe/forced                   -> completed bare by probe, fenced
    happened bare/webhook/forced                 -> completed bare by webhook, fenced
    happened bare/operator/forced                -> completed bare by operator, fenced
    not found*/forced, never/*/forced            -> retryable, fenced
    happened/probe                               -> completed 201 by probe
    happened/webhook                             -> completed 201 by webhook
    happened/operator                            -> completed 201 by operator
    happened bare/probe                          -> completed bare by probe
    happened bare/webhook                        -> completed bare by webhook
    happened bare/operator                       -> completed bare by operator
    not found late/*, never/*                    -> retryable
    not found early/operator                     -> too early
    not found early/* [local]                    -> retryable
    not found early/* [keyed]                    -> retryable, in doubt
    not found early/*                            -> unknown (deadline), asked when believed
    shrug* [local]                               -> retryable
    shrug* [keyed]                               -> retryable, in doubt
    shrug last/probe*                            -> unknown (deadline), answered, not asked, dead letter
    shrug/probe*                                 -> unknown (deadline), answered, asked later
    shrug*/webhook*                              -> unknown (deadline), asked later
    shrug*/operator*                             -> unknown (deadline), asked now

running lapsed, forgotten
    decide other                                 -> refuse key reused
    decide accept [local]                        -> begin pending
    decide* [local]                              -> begin running 2
    decide* [keyed]                              -> settle unknown (downstreamforgot), asked later
    decide*                                      -> settle unknown (lapsed), asked later
    renew                                        -> running 1
    renew foreign                                -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt [local]                             -> retryable
    in doubt [keyed]                             -> unknown (downstreamforgot), asked later
    in doubt                                     -> unknown (connectionlost), asked later
    done foreign, not run foreign, in doubt foreign -> superseded
    commit                                       -> running 1, after charge
    call                                         -> running 1, calling
    commit foreign, call foreign, claim, cancel  -> nothing
    sweep [local]                                -> retryable
    sweep [keyed]                                -> unknown (downstreamforgot), asked later
    sweep                                        -> unknown (lapsed), asked later
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget [local]                               -> erased, fenced
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/probe/forced                        -> completed 201 by probe, fenced
    happened/webhook/forced                      -> completed 201 by webhook, fenced
    happened/operator/forced                     -> completed 201 by operator, fenced
    happened bare/probe/forced                   -> completed bare by probe, fenced
    happened bare/webhook/forced                 -> completed bare by webhook, fenced
    happened bare/operator/forced                -> completed bare by operator, fenced
    not found*/forced, never/*/forced            -> retryable, fenced
    happened/probe                               -> completed 201 by probe
    happened/webhook                             -> completed 201 by webhook
    happened/operator                            -> completed 201 by operator
    happened bare/probe                          -> completed bare by probe
    happened bare/webhook                        -> completed bare by webhook
    happened bare/operator                       -> completed bare by operator
    not found late/*, never/*                    -> retryable
    not found early/operator                     -> too early
    not found early/* [local]                    -> retryable
    not found early/* [keyed]                    -> unknown (downstreamforgot), asked when believed
    not found early/*                            -> unknown (lapsed), asked when believed
    shrug* [local]                               -> retryable
    shrug last/probe* [keyed]                    -> unknown (downstreamforgot), answered, not asked, dead letter
    shrug/probe* [keyed]                         -> unknown (downstreamforgot), answered, asked later
    shrug*/webhook* [keyed]                      -> unknown (downstreamforgot), asked later
    shrug*/operator* [keyed]                     -> unknown (downstreamforgot), asked now
    shrug last/probe*                            -> unknown (lapsed), answered, not asked, dead letter
    shrug/probe*                                 -> unknown (lapsed), answered, asked later
    shrug*/webhook*                              -> unknown (lapsed), asked later
    shrug*/operator*                             -> unknown (lapsed), asked now

completed
    decide other                                 -> refuse key reused
    decide*                                      -> replay
    renew                                        -> completed
    renew foreign                                -> lost
    done, not run, in doubt                      -> already
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep, claim, cancel, commit*, call*                 -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> ended
    forget*                                      -> erased, fenced
    not found*/webhook*, never/webhook*          -> contradiction, completed 201 by attempt
    */webhook*                                   -> already
    */*                                          -> settled

completed bare
    decide other                                 -> refuse key reused
    decide*                                      -> refuse response not stored
    renew*                                       -> lost
    done, not run, in doubt                      -> already
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep, claim, cancel, commit*, call*                 -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> ended
    forget*                                      -> erased, fenced
    not found*/webhook*, never/webhook*          -> contradiction, completed bare by attempt
    */webhook*                                   -> already
    */*                                          -> settled

completed expired
    decide gone                                  -> refuse expired
    decide accept                                -> begin pending
    decide*                                      -> begin running 1
    renew                                        -> completed
    renew foreign                                -> lost
    done, not run, in doubt                      -> already
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep, claim, cancel, commit*, call*                 -> nothing
    reap                                         -> deleted
    due                                          -> now
    standing                                     -> absent
    forget*, */*                                 -> absent

retryable
    decide other                                 -> refuse key reused
    decide accept                                -> begin pending
    decide*                                      -> begin running 2
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> nothing
    claim, cancel, commit*, call*                        -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> ended
    forget*                                      -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable expired
    decide accept                                -> begin pending
    decide*                                      -> begin running 1
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> nothing
    claim, cancel, commit*, call*                        -> nothing
    reap                                         -> deleted
    due                                          -> now
    standing                                     -> absent
    forget*, */*                                 -> absent

retryable accepted
    decide other                                 -> refuse key reused
    decide accept                                -> refuse in progress
    decide*                                      -> begin running 2
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> nothing
    claim                                        -> running 2
    cancel                                       -> completed 408 by caller
    commit*, call*                               -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> in progress
    forget*                                      -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable accepted, run out
    decide other                                 -> refuse key reused
    decide*                                      -> settle completed 408 by sweeper
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> completed 408 by sweeper
    claim                                        -> nothing
    cancel                                       -> completed 408 by caller
    commit*, call*                               -> nothing
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget*                                      -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable accepted, in doubt, run out
    decide other                                 -> refuse key reused
    decide*                                      -> settle retryable, in doubt
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable, in doubt
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> retryable, in doubt
    claim, cancel                                -> nothing
    commit*, call*                               -> nothing
    reap                                         -> kept
    due                                          -> now
    standing                                     -> in progress
    forget*                                      -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable in doubt
    decide other                                 -> refuse key reused
    decide accept                                -> begin pending, in doubt
    decide*                                      -> begin running 2, in doubt
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable, in doubt
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> nothing
    claim, cancel, commit*, call*                        -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> ended
    forget*                                      -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable in doubt, past its retention
    decide other                                 -> refuse key reused
    decide accept                                -> begin pending, in doubt
    decide*                                      -> begin running 2, in doubt
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable, in doubt
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> nothing
    claim, cancel, commit*, call*                        -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> ended
    forget*                                      -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable in doubt, forgotten
    decide other                                 -> refuse key reused
    decide*                                      -> settle unknown (downstreamforgot), asked later, in doubt
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable, in doubt
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> unknown (downstreamforgot), asked later, in doubt
    claim, cancel, commit*, call*                        -> nothing
    reap                                         -> kept
    due                                          -> now
    standing                                     -> ended
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

retryable in doubt, forgotten, past its retention
    decide other                                 -> refuse key reused
    decide*                                      -> settle unknown (downstreamforgot), asked later, in doubt
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable, in doubt
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep                                        -> unknown (downstreamforgot), asked later, in doubt
    claim, cancel, commit*, call*                        -> nothing
    reap                                         -> kept
    due                                          -> now
    standing                                     -> ended
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    */webhook*                                   -> already
    */*                                          -> settled

unknown
    decide other                                 -> refuse key reused
    decide*                                      -> refuse outcome unknown
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep, claim, cancel, commit*, call*                 -> nothing
    reap                                         -> kept
    due                                          -> later
    standing                                     -> ended
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/probe*                              -> completed 201 by probe
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/probe*                         -> completed bare by probe
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    not found early/*/forced, not found late/*, never/* -> retryable
    not found early/operator                     -> too early
    not found early/*                            -> unknown (lapsed), asked when believed
    shrug last/probe*                            -> unknown (lapsed), answered, not asked, dead letter
    shrug/probe*                                 -> unknown (lapsed), answered, asked later
    shrug*/webhook*                              -> unknown (lapsed), asked later
    shrug*/operator*                             -> unknown (lapsed), asked now

unknown, dead letter
    decide other                                 -> refuse key reused
    decide*                                      -> refuse outcome unknown
    renew*                                       -> lost
    done                                         -> completed 201 by attempt
    not run                                      -> retryable
    in doubt                                     -> known
    done foreign, not run foreign, in doubt foreign -> superseded
    sweep, claim, cancel, commit*, call*                 -> nothing
    reap                                         -> kept
    due                                          -> never
    standing                                     -> ended
    forget                                       -> unknown
    forget forced                                -> erased, fenced
    happened/probe*                              -> completed 201 by probe
    happened/webhook*                            -> completed 201 by webhook
    happened/operator*                           -> completed 201 by operator
    happened bare/probe*                         -> completed bare by probe
    happened bare/webhook*                       -> completed bare by webhook
    happened bare/operator*                      -> completed bare by operator
    not found early/*/forced, not found late/*, never/* -> retryable
    not found early/operator                     -> too early
    not found early/*                            -> unknown (lapsed), asked when believed, dead letter
    shrug last/probe*                            -> unknown (lapsed), answered, not asked, dead letter
    shrug/probe*                                 -> unknown (lapsed), answered, asked later, dead letter
    shrug*/webhook*                              -> unknown (lapsed), not asked, dead letter
    shrug*/operator*                             -> unknown (lapsed), asked now
";

const EFFECTS: [Effects; 4] = [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque];

const STATES: [&str; 22] = [
    "absent",
    "pending",
    "pending expired",
    "pending in doubt, forgotten",
    "running",
    "running lapsed",
    "running past its deadline",
    "running lapsed, forgotten",
    "completed",
    "completed bare",
    "completed expired",
    "retryable",
    "retryable expired",
    "retryable accepted",
    "retryable accepted, run out",
    "retryable accepted, in doubt, run out",
    "retryable in doubt",
    "retryable in doubt, past its retention",
    "retryable in doubt, forgotten",
    "retryable in doubt, forgotten, past its retention",
    "unknown",
    "unknown, dead letter",
];

fn state(name: &str, effects: Effects) -> Option<Record> {
    let completed = |response: Option<Arc<Response>>, expires_at: i64| {
        record(effects, 60, State::Completed { response, by: Source::Attempt, expires_at: at(expires_at) })
    };
    let retryable = |expires_at: i64| {
        record(
            effects,
            60,
            State::Retryable { retry_after: None, expires_at: at(expires_at), stuck_since: None },
        )
    };
    let unknown = |ask_at: Option<Timestamp>, dead_letter| {
        let asking = Asking::default();
        let state = State::Unknown { reason: Reason::Lapsed, since: at(-10), asking, ask_at, dead_letter };
        record(effects, 60, state)
    };
    // A rerun takes 330 s, and downstream remembers for 23 h: to the second, there is no time for one more.
    let long_ago = |mut record: Record| {
        record.created_at = at(-(23 * HOUR - 330));
        record
    };
    let in_doubt = |mut record: Record| {
        record.relies_on_memory = true;
        record
    };
    let pending = |expires_at: i64| {
        let mut record = record(effects, 60, State::Pending { expires_at: at(expires_at) });
        record.attempt = 0;
        record
    };
    Some(match name {
        "absent" => return None,
        "pending" => pending(HOUR),
        "pending expired" => pending(0),
        "pending in doubt, forgotten" => in_doubt(long_ago(pending(HOUR))),
        "running" => record(effects, 10, State::Running { lapses_at: at(20) }),
        "running lapsed" => record(effects, 30, State::Running { lapses_at: at(0) }),
        "running past its deadline" => record(effects, 300, State::Running { lapses_at: at(20) }),
        "running lapsed, forgotten" => long_ago(record(effects, 30, State::Running { lapses_at: at(0) })),
        "completed" => completed(Some(answer(201)), HOUR),
        "completed bare" => completed(None, HOUR),
        "completed expired" => completed(Some(answer(201)), 0),
        "retryable" => retryable(HOUR),
        "retryable expired" => retryable(0),
        "retryable accepted" => accepted(retryable(HOUR), HOUR),
        "retryable accepted, run out" => accepted(retryable(0), 0),
        "retryable accepted, in doubt, run out" => in_doubt(accepted(retryable(0), 0)),
        "retryable in doubt" => in_doubt(retryable(24 * HOUR)),
        "retryable in doubt, past its retention" => in_doubt(retryable(0)),
        "retryable in doubt, forgotten" => long_ago(in_doubt(retryable(HOUR))),
        "retryable in doubt, forgotten, past its retention" => long_ago(in_doubt(retryable(0))),
        "unknown" => unknown(Some(at(1)), false),
        "unknown, dead letter" => unknown(None, true),
        other => panic!("no state {other:?}"),
    })
}

fn events() -> Vec<String> {
    let verdicts =
        ["happened", "happened bare", "not found early", "not found late", "never", "shrug", "shrug last"];
    let ends = ["done", "not run", "in doubt"];
    let mut events: Vec<String> =
        ["decide", "decide other", "decide accept", "decide gone", "sweep", "claim", "cancel"]
            .into_iter()
            .chain(["forget", "forget forced", "reap", "due", "standing"])
            .map(String::from)
            .collect();
    for event in ends.into_iter().chain(["renew", "commit", "call"]) {
        events.extend([event.to_string(), format!("{event} foreign")]);
    }
    for verdict in verdicts {
        for by in ["probe", "webhook", "operator"] {
            events.extend([format!("{verdict}/{by}"), format!("{verdict}/{by}/forced")]);
        }
    }
    events
}

/// What the machine answers, in a few words.
fn happen(event: &str, state_name: &str, effects: Effects) -> String {
    let mut record = state(state_name, effects);
    if let (true, Some(record)) = (event.starts_with("not found late"), &mut record)
        && state_name != "running"
    {
        // Past the deadline and the horizon, to the second.
        record.began_at = at(-330);
    }
    let seen = record.map(|record| seen(record, at(0)));
    let token = if event.ends_with("foreign") { FOREIGN } else { OWN };
    match event.trim_end_matches(" foreign") {
        "decide" => decide(seen.as_ref(), 1, Admission::Run, &policy(effects)),
        "decide other" => decide(seen.as_ref(), 9, Admission::Run, &policy(effects)),
        "decide accept" => decide(seen.as_ref(), 1, Admission::Accept, &policy(effects)),
        "decide gone" => {
            let policy = Policy { on_expired: OnExpired::Gone, ..policy(effects) };
            decide(seen.as_ref(), 1, Admission::Run, &policy)
        }
        "renew" => match machine::renew(seen.as_ref(), token) {
            Renewal::Write(draft) => words(&draft),
            Renewal::Completed => "completed".into(),
            Renewal::Lost => "lost".into(),
        },
        "done" => finish(seen.as_ref(), token, &done()),
        "not run" => finish(seen.as_ref(), token, &not_run()),
        "in doubt" => finish(seen.as_ref(), token, &Outcome::Unknown(Reason::ConnectionLost)),
        "standing" => match machine::standing(seen.as_ref(), &policy(effects)) {
            Standing::InProgress(_) => "in progress".into(),
            Standing::Ended(_) => "ended".into(),
            Standing::Gone => "gone".into(),
            Standing::Absent => "absent".into(),
        },
        event => seen.map_or_else(|| "nothing there".into(), |seen| happen_to(event, &seen, token)),
    }
}

fn happen_to(event: &str, seen: &Seen, token: Token) -> String {
    let phase: Arc<str> = "charge".into();
    let written = |draft: Option<Box<Draft>>| draft.map_or_else(|| "nothing".into(), |draft| words(&draft));
    match event {
        "sweep" => written(machine::sweep(seen)),
        "claim" => written(machine::claim(seen, FRESH, PAUSE_MAX)),
        "cancel" => written(machine::cancel(seen)),
        "commit" => written(machine::commit_phase(seen, token, &phase)),
        "call" => written(machine::call(seen, token, Calling { phase, effects: Effects::Opaque })),
        "forget" => forgotten(machine::forget(seen, FRESH, Force::No)),
        "forget forced" => forgotten(machine::forget(seen, FRESH, Force::Yes)),
        "reap" => if machine::may_reap(&seen.record, seen.now) { "deleted" } else { "kept" }.into(),
        "due" => match machine::due(&seen.record.draft()).stamp(seen.now) {
            Some(due) if due <= seen.now => "now".into(),
            Some(_) => "later".into(),
            None => "never".into(),
        },
        verdict => ruled(machine::verdict(seen, &statement(verdict))),
    }
}

fn done() -> Outcome {
    Outcome::Completed { response: Some(answer(201)), keep_for: None }
}

fn not_run() -> Outcome {
    Outcome::DidNotRun { retry_after: None, keep_for: None }
}

fn decide(seen: Option<&Seen>, byte: u8, admission: Admission, policy: &Policy) -> String {
    match asked(byte, admission, policy, |request| machine::decide(seen, request)) {
        Decision::Begin(draft) => format!("begin {}", words(&draft)),
        Decision::Settle(draft) => format!("settle {}", words(&draft)),
        Decision::Replay => "replay".into(),
        Decision::Refuse(refusal) => format!("refuse {}", refused(&refusal)),
    }
}

fn answer_from_copy(copy: &Seen, byte: u8, policy: &Policy) -> String {
    told(asked(byte, Admission::Run, policy, |request| machine::answer_from_copy(copy, request)))
}

fn answer_while_held(seen: &Seen, byte: u8, policy: &Policy) -> String {
    told(asked(byte, Admission::Run, policy, |request| machine::answer_while_held(seen, request)))
}

fn told(answer: FromCopy) -> String {
    match answer {
        FromCopy::Replay => "replay".into(),
        FromCopy::Refuse(refusal) => format!("refuse {}", refused(&refusal)),
        FromCopy::AskStore => "ask".into(),
    }
}

/// Asks about a request with the fingerprint `byte`.
fn asked<T>(byte: u8, admission: Admission, policy: &Policy, ask: impl FnOnce(&Request<'_>) -> T) -> T {
    let (scope, key) = (Scope::stored([7; 32], None), Key::stored("order-42"));
    ask(&Request {
        scope: &scope,
        key: &key,
        route: None,
        fingerprint: &print(byte),
        policy,
        token: FRESH,
        admission,
        trace: None,
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the machine gives no other refusals")]
fn refused(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::KeyReused { .. } => "key reused",
        Refusal::InProgress { .. } => "in progress",
        Refusal::OutcomeUnknown { .. } => "outcome unknown",
        Refusal::ResponseNotStored => "response not stored",
        Refusal::Expired => "expired",
        other => panic!("the machine does not refuse so: {other:?}"),
    }
}

fn finish(seen: Option<&Seen>, token: Token, outcome: &Outcome) -> String {
    match machine::finish(seen, token, outcome) {
        Finish::Write(draft) => words(&draft),
        Finish::Already => "already".into(),
        Finish::Known => "known".into(),
        Finish::Superseded => "superseded".into(),
    }
}

fn forgotten(forget: Forget) -> String {
    match forget {
        Forget::Write(draft) => words(&draft),
        Forget::StillRunning => "still running".into(),
        Forget::Unknown => "unknown".into(),
        Forget::Absent => "absent".into(),
    }
}

fn statement(event: &str) -> Ruling {
    let mut parts = event.split('/');
    let verdict = match parts.next().unwrap_or_default() {
        "not found early" | "not found late" => said("did not"),
        "never" => said("never will"),
        "shrug" | "shrug last" => said("unknown"),
        word => said(word),
    };
    let by = match parts.next() {
        Some("probe") => Source::Probe,
        Some("webhook") => Source::Webhook,
        Some("operator") => Source::Operator,
        other => panic!("nobody rules by {other:?}"),
    };
    let force = if parts.next() == Some("forced") { Force::Yes } else { Force::No };
    let tries_max = if event.starts_with("shrug last") { 1 } else { 20 };
    Ruling { force, probe: Some(Backoff { tries_max, ..BACKOFF }), ..ruling(by, verdict) }
}

fn ruled(ruled: Ruled) -> String {
    match ruled {
        Ruled::Settles(draft) => words(&draft),
        Ruled::Keeps(draft) => words(&draft),
        Ruled::Notes(draft, _) => words(&draft),
        Ruled::Contradicts(draft) => format!("contradiction, {}", words(&draft)),
        Ruled::Ignores(why, _) => format!("ignored, {why:?}").to_lowercase(),
        Ruled::Already => "already".into(),
        Ruled::StillRunning => "still running".into(),
        Ruled::TooEarly(_) => "too early".into(),
        Ruled::Settled => "settled".into(),
        Ruled::NothingToAsk => "nothing to ask".into(),
        Ruled::Absent => "absent".into(),
    }
}

/// A draft in a few words: its state, then what is unusual about it.
fn words(draft: &Draft) -> String {
    let mut words = match &draft.state {
        State::Pending { .. } => "pending".to_string(),
        State::Running { .. } => format!("running {}", draft.attempt),
        State::Completed { response, by, .. } => {
            let status = response.as_ref().map_or("bare".into(), |response| response.status.to_string());
            format!("completed {status} by {by:?}").to_lowercase()
        }
        State::Retryable { expires_at: When::AfterWrite(Duration::ZERO), .. } => "erased".into(),
        State::Retryable { .. } => "retryable".into(),
        State::Unknown { reason, asking, dead_letter, ask_at, .. } => {
            let answers = if asking.answers > 0 { ", answered" } else { "" };
            let dead = if *dead_letter { ", dead letter" } else { "" };
            format!(
                "unknown ({}){answers}{}{dead}",
                format!("{reason:?}").to_lowercase(),
                asked_next(draft, *ask_at)
            )
        }
    };
    let mut note = |is: bool, text: &str| {
        if is {
            words.push_str(text);
        }
    };
    let is_done = matches!(draft.state, State::Completed { .. });
    note(draft.relies_on_memory && !is_done, ", in doubt");
    note(draft.evidence.is_some(), ", evidence");
    note(draft.progress.recovery_point.is_some(), ", after charge");
    note(draft.progress.calling.is_some(), ", calling");
    let fences =
        matches!(draft.state, State::Retryable { .. } | State::Completed { .. } | State::Unknown { .. });
    note(draft.token != OWN && fences, ", fenced");
    words
}

fn asked_next(draft: &Draft, ask_at: Option<When>) -> &'static str {
    let believed_at = draft.began_at.plus(draft.terms.deadline).plus(draft.terms.horizon);
    match ask_at {
        None => ", not asked",
        Some(When::AfterWrite(Duration::ZERO)) => ", asked now",
        Some(when) if when == believed_at => ", asked when believed",
        Some(_) => ", asked later",
    }
}

/// One line of the table.
struct Line {
    state: &'static str,
    events: Vec<&'static str>,
    effects: Option<&'static str>,
    result: &'static str,
}

fn table() -> Vec<Line> {
    let mut lines = Vec::new();
    let mut state = "";
    for text in TABLE.lines().filter(|line| !line.trim().is_empty()) {
        if !text.starts_with(' ') {
            state = text;
            assert!(STATES.contains(&state), "the table names no state with {state:?}");
            continue;
        }
        let (left, result) = text.split_once("->").unwrap_or_else(|| panic!("no result in {text:?}"));
        let (events, effects) = match left.split_once('[') {
            Some((events, effects)) => (events, Some(effects.trim().trim_end_matches(']'))),
            None => (left, None),
        };
        let events = events.split(',').map(str::trim).collect();
        lines.push(Line { state, events, effects, result: result.trim() });
    }
    lines
}

impl Line {
    fn covers(&self, state: &str, event: &str, effects: Effects) -> bool {
        let kind = format!("{effects:?}").to_lowercase();
        self.state == state
            && self.effects.is_none_or(|effects| effects.split(' ').any(|name| name == kind))
            && self.events.iter().any(|pattern| matches_glob(pattern, event))
    }
}

/// Whether `text` is `pattern`, where `*` stands for any text.
fn matches_glob(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    (0..=text.len()).any(|skip| matches_glob(rest, &text[skip..]))
}

/// U01, U03, U04, U06, R05, R06, F06, F07, P08, C04, T02, T03, T04
#[test]
fn every_event_in_every_state_is_answered_as_the_table_says() {
    let lines = table();
    let mut used = vec![false; lines.len()];
    let mut wrong = Vec::new();
    for state in STATES {
        for event in events() {
            for effects in EFFECTS {
                let result = happen(&event, state, effects);
                match lines.iter().position(|line| line.covers(state, &event, effects)) {
                    Some(index) => {
                        used[index] = true;
                        let expected = lines[index].result;
                        if expected != result {
                            wrong.push(format!(
                                "{state} | {event} | {effects:?}: expected {expected:?}, is {result:?}"
                            ));
                        }
                    }
                    None => wrong
                        .push(format!("{state} | {event} | {effects:?}: not in the table, is {result:?}")),
                }
            }
        }
    }
    let idle = lines.iter().zip(used).filter(|(_, used)| !used);
    wrong.extend(idle.map(|(line, _)| format!("{} | {:?}: covers nothing", line.state, line.events)));
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// F06: a client is told whether it has used its key on another endpoint.
#[test]
fn a_reused_key_is_told_from_one_of_another_endpoint() {
    let (here, there): (Arc<str>, Arc<str>) = ("POST /orders".into(), "POST /refunds".into());
    let on = |route: Option<&Arc<str>>| Record {
        route: route.cloned(),
        ..state("completed", Effects::Opaque).unwrap()
    };
    for (first, then, is_other) in [
        (None, None, false),
        (Some(&here), Some(&here), false),
        (Some(&here), Some(&there), true),
        (Some(&here), None, true),
        (None, Some(&here), true),
    ] {
        let seen = seen(on(first), at(0));
        let decision = asked(9, Admission::Run, &policy(Effects::Opaque), |request| {
            machine::decide(Some(&seen), &Request { route: then, ..*request })
        });
        assert_eq!(
            decision,
            Decision::Refuse(Refusal::KeyReused { other_endpoint: is_other }),
            "{first:?} {then:?}"
        );
    }
}

/// T01, C05: an answer is kept for as long as its handler says, else for the route's retention; so is a released key.
#[test]
fn a_finished_record_is_kept_for_as_long_as_its_attempt_says() {
    let running = seen(state("running", Effects::Opaque).unwrap(), at(0));
    let hour = Duration::from_secs(3_600);
    for (keep_for, kept) in [(Some(hour), hour), (None, policy(Effects::Opaque).retention)] {
        for outcome in [
            Outcome::Completed { response: Some(answer(201)), keep_for },
            Outcome::DidNotRun { retry_after: None, keep_for },
        ] {
            let Finish::Write(draft) = machine::finish(Some(&running), OWN, &outcome) else {
                panic!("{outcome:?} is written");
            };
            let standing =
                machine::standing(Some(&seen(draft.stamp(at(5)), at(5))), &policy(Effects::Opaque));
            assert_eq!(standing, Standing::Ended(Some(at(5).plus(kept))), "{outcome:?}");
        }
    }
}

/// U01, U04: a phase that has committed has its call's result on record: nothing relies on downstream's memory any more.
#[test]
fn a_phase_that_commits_settles_the_doubt_about_its_call() {
    let mut record = state("running", Effects::Keyed).unwrap();
    record.relies_on_memory = true;
    record.progress.calling = Some(Calling { phase: "charge".into(), effects: Effects::Keyed });
    let draft = machine::commit_phase(&seen(record, at(0)), OWN, &"charge".into()).unwrap();
    assert_eq!(words(&draft), "running 1, after charge");
    assert!(!draft.relies_on_memory);
    assert_eq!(draft.progress.calling, None);
}

/// U01, W03: no call begins at or after the deadline of its attempt, even if the lease lives: probes are believed from then on.
#[test]
fn no_call_begins_after_the_deadline() {
    let record = state("running", Effects::Local).unwrap();
    let deadline = record.deadline_at();
    let calling = Calling { phase: "charge".into(), effects: Effects::Queryable };
    let before = Timestamp::from_micros(deadline.as_micros() - 1);
    assert!(machine::call(&seen(record.clone(), before), OWN, calling.clone()).is_some());
    assert_eq!(machine::call(&seen(record, deadline), OWN, calling), None);
}

/// W10, T03: half-done work is kept past its retention, flagged once, and goes on where its request comes back.
#[test]
fn work_that_stopped_at_a_recovery_point_is_flagged_and_never_expires() {
    let mut record = retryable(Effects::Local);
    record.progress.recovery_point = Some("ride_created".into());
    let expiry = at(HOUR);
    assert_eq!(machine::expires(&record.draft()), None);
    assert_eq!(machine::due(&record.draft()).stamp(at(0)), Some(expiry));
    let before = Timestamp::from_micros(expiry.as_micros() - 1);
    assert_eq!(machine::sweep(&seen(record.clone(), before)), None);
    for now in [expiry, at(999 * HOUR)] {
        assert!(!machine::may_reap(&record, now));
        let resumed = decide(Some(&seen(record.clone(), now)), 1, Admission::Run, &policy(Effects::Local));
        assert_eq!(resumed, "begin running 2, after charge", "it goes on, however late");
    }
    let flagged = machine::sweep(&seen(record.clone(), expiry)).expect("it is flagged").stamp(expiry);
    assert_eq!(machine::unknown_since(&flagged), Some(expiry));
    assert!(!machine::became_unknown(&flagged), "it is flagged, and not unknown");
    assert!(machine::facts(&flagged).dead_letter);
    assert_eq!(flagged.progress, record.progress);
    assert_eq!(machine::due(&flagged.draft()), Due::default(), "once is enough");
    assert_eq!(machine::sweep(&seen(flagged.clone(), at(999 * HOUR))), None);
    assert!(!machine::may_reap(&flagged, at(999 * HOUR)));
    let resumed =
        decide(Some(&seen(flagged.clone(), at(999 * HOUR))), 1, Admission::Run, &policy(Effects::Local));
    assert_eq!(resumed, "begin running 2, after charge");
    let said = machine::why(&seen(flagged.clone(), at(999 * HOUR)), |_| String::new());
    assert!(said.contains("\"ride_created\"") && said.contains("a person has to decide"), "{said}");
    let flagged = seen(flagged, at(999 * HOUR));
    assert_eq!(machine::forget(&flagged, FRESH, Force::No), Forget::Unknown, "a part of it is done");
    let Forget::Write(forgotten) = machine::forget(&flagged, FRESH, Force::Yes) else {
        panic!("a person who insists may forget it")
    };
    assert!(machine::may_reap(&forgotten.stamp(at(999 * HOUR)), at(999 * HOUR)));
}

/// W10, U04: half-done work that relies on downstream's memory is flagged in time, and unknown once that may be gone.
#[test]
fn half_done_work_in_doubt_is_due_for_both() {
    let mut record = Record { relies_on_memory: true, ..retryable(Effects::Keyed) };
    record.progress.recovery_point = Some("ride_created".into());
    assert_eq!(machine::due(&record.draft()).stamp(at(0)), Some(at(HOUR)));
    let flagged = machine::sweep(&seen(record, at(HOUR))).expect("it is flagged").stamp(at(HOUR));
    assert!(machine::facts(&flagged).dead_letter);
    let forgets_at = machine::due(&flagged.draft()).stamp(at(HOUR)).expect("downstream forgets");
    let unknown = machine::sweep(&seen(flagged, forgets_at)).expect("it is unknown");
    assert!(words(&unknown).starts_with("unknown"), "{}", words(&unknown));
}

/// W10: accepted work that is half done is not given up with a 408: a part of it is done.
#[test]
fn accepted_work_that_is_half_done_is_not_given_up() {
    let mut record = pending(Effects::Local);
    record.progress.recovery_point = Some("ride_created".into());
    let draft = machine::sweep(&seen(record, at(HOUR))).expect("its acceptance has run out");
    assert!(words(&draft).starts_with("retryable"), "{}", words(&draft));
}

/// W03: phases that are not those of the record are doubt, though the work is local.
#[test]
fn a_handler_whose_phases_changed_leaves_the_record_unknown() {
    let record = state("running", Effects::Local).unwrap();
    let Finish::Write(draft) =
        machine::finish(Some(&seen(record, at(0))), OWN, &Outcome::Unknown(Reason::Changed))
    else {
        panic!("it is written")
    };
    assert!(words(&draft).starts_with("unknown"), "{}", words(&draft));
}

/// W04: a keyed call that may have reached downstream is made again under its own name: it stays on record.
#[test]
fn a_call_in_doubt_stays_on_record_until_its_result_does() {
    for (effects, is_kept) in [(Effects::Keyed, true), (Effects::Local, false)] {
        let mut record = lapsed(Effects::Local);
        record.progress.calling = Some(Calling { phase: "charge".into(), effects });
        let decided = asked(1, Admission::Run, &policy(Effects::Local), |request| {
            machine::decide(Some(&seen(record, at(0))), request)
        });
        let Decision::Begin(draft) = decided else { panic!("{decided:?}") };
        assert_eq!(draft.progress.calling.is_some(), is_kept, "{effects:?}");
    }
}

/// W03: the results of phases end with the progress that they belong to.
#[test]
fn results_end_with_the_use_of_their_key() {
    let mut record = completed(Effects::Local, None);
    record.progress.recovery_point = Some("charged".into());
    let expired = seen(record, at(HOUR));
    let Decision::Begin(anew) =
        asked(1, Admission::Run, &policy(Effects::Local), |request| machine::decide(Some(&expired), request))
    else {
        panic!("it has expired")
    };
    assert!(machine::ends_progress(Some(&expired), &anew));
    assert!(!machine::ends_progress(Some(&expired), &expired.record.draft()));
    assert!(!machine::ends_progress(None, &anew));
}

/// U03, U04: an embedded store has one owner, so whoever opens it next knows that no attempt runs, whatever the leases say.
#[test]
fn an_attempt_whose_process_is_dead_is_lost_though_its_lease_lasts() {
    for (effects, expected) in [
        (Effects::Local, "retryable"),
        (Effects::Keyed, "retryable, in doubt"),
        (Effects::Queryable, "unknown (lapsed), asked later"),
        (Effects::Opaque, "unknown (lapsed), asked later"),
    ] {
        for name in STATES.into_iter().filter(|name| *name != "absent") {
            let abandoned = machine::abandon(&seen(state(name, effects).unwrap(), at(0)));
            match name {
                "running" => assert_eq!(words(&abandoned.unwrap()), expected, "{effects:?}"),
                name if name.starts_with("running") => assert!(abandoned.is_some(), "{name}"),
                name => assert_eq!(abandoned, None, "{name}"),
            }
        }
    }
}

/// X04, F06: from its copy a node replays and refuses as the record itself would, and otherwise asks the store.
#[test]
fn a_copy_answers_as_its_record_would_and_runs_nothing() {
    for (name, same, other) in [
        ("completed", "replay", "refuse key reused"),
        ("completed bare", "refuse response not stored", "refuse key reused"),
        ("completed expired", "ask", "ask"),
        ("pending", "refuse in progress", "refuse key reused"),
        ("running", "refuse in progress", "refuse key reused"),
        ("running lapsed", "ask", "refuse key reused"),
        ("running past its deadline", "ask", "refuse key reused"),
        ("retryable", "ask", "refuse key reused"),
        ("retryable expired", "ask", "ask"),
        ("retryable in doubt, forgotten", "ask", "refuse key reused"),
        ("unknown", "refuse outcome unknown", "refuse key reused"),
    ] {
        for effects in [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque] {
            let copy = seen(state(name, effects).unwrap(), at(0));
            for on_expired in [OnExpired::Run, OnExpired::Gone] {
                let policy = Policy { on_expired, ..policy(effects) };
                assert_eq!(answer_from_copy(&copy, 1, &policy), same, "{name}, {effects:?}");
                assert_eq!(answer_from_copy(&copy, 9, &policy), other, "{name}, {effects:?}, another body");
            }
        }
    }
}

/// W09, X02: while a transaction holds the record, an attempt that runs is in progress also past its lease; otherwise as from
/// a copy.
#[test]
fn a_record_that_is_held_answers_as_a_copy_and_what_runs_is_in_progress() {
    for name in STATES.into_iter().filter(|name| *name != "absent") {
        for effects in [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque] {
            let (held, policy) = (seen(state(name, effects).unwrap(), at(0)), policy(effects));
            let same = match answer_from_copy(&held, 1, &policy) {
                ask if ask == "ask" && name.starts_with("running") => "refuse in progress".to_owned(),
                told => told,
            };
            assert_eq!(answer_while_held(&held, 1, &policy), same, "{name}, {effects:?}");
            let other = answer_from_copy(&held, 9, &policy);
            assert_eq!(answer_while_held(&held, 9, &policy), other, "{name}, {effects:?}, another body");
        }
    }
}

/// X04, T02: not replayable in the very microsecond in which it expires.
#[test]
fn a_copy_is_replayed_until_the_moment_it_expires() {
    let record = state("completed", Effects::Opaque).unwrap();
    let (_, expires_at) = machine::stored(&record).unwrap();
    let just_before = Timestamp::from_micros(expires_at.as_micros() - 1);
    for (now, is_replayed) in [(just_before, true), (expires_at, false)] {
        let copy = seen(record.clone(), now);
        assert_eq!(machine::is_replayable(&copy), is_replayed);
        let answered = answer_from_copy(&copy, 1, &policy(Effects::Opaque));
        assert_eq!(answered == "replay", is_replayed, "{answered}");
    }
}

/// U04: by the microsecond, and the same for everyone who asks: a request, the sweeper, a worker, and when it is due.
#[test]
fn the_last_rerun_is_allowed_just_before_it_is_due_for_doubt() {
    let last = at(23 * HOUR - 330);
    let in_doubt = |state| Record { relies_on_memory: true, ..record(Effects::Keyed, 0, state) };
    let retryable =
        in_doubt(State::Retryable { retry_after: None, expires_at: at(24 * HOUR), stuck_since: None });
    let pending = in_doubt(State::Pending { expires_at: at(24 * HOUR) });
    for record in [&retryable, &pending] {
        assert_eq!(machine::due(&record.draft()).stamp(at(0)), Some(last));
    }
    for (micros, is_allowed) in [(-1, true), (0, false), (1, false)] {
        let now = Timestamp::from_micros(last.as_micros() + micros);
        let (retryable, pending) = (seen(retryable.clone(), now), seen(pending.clone(), now));
        let decided = decide(Some(&retryable), 1, Admission::Run, &policy(Effects::Keyed));
        assert_eq!(decided.starts_with("begin running 2"), is_allowed, "{micros}: {decided}");
        assert_eq!(machine::claim(&pending, FRESH, PAUSE_MAX).is_some(), is_allowed, "{micros}");
        for seen in [&retryable, &pending] {
            assert_eq!(machine::sweep(seen).is_none(), is_allowed, "{micros}: {seen:?}");
        }
    }
}

/// T03: until when doubt is kept nobody knows, so no caller is told a date.
#[test]
fn doubt_is_told_without_a_date() {
    let retryable = record(
        Effects::Keyed,
        60,
        State::Retryable { retry_after: None, expires_at: at(HOUR), stuck_since: None },
    );
    let in_doubt = Record { relies_on_memory: true, ..retryable.clone() };
    for (record, told) in [(retryable, Some(at(HOUR))), (in_doubt, None)] {
        let standing = machine::standing(Some(&seen(record, at(0))), &policy(Effects::Keyed));
        assert_eq!(standing, Standing::Ended(told));
    }
}

/// U04: spans that are out of all proportion neither overflow nor allow anything.
#[test]
fn a_memory_shorter_than_a_rerun_is_over_from_the_start() {
    let state = State::Retryable { retry_after: None, expires_at: at(HOUR), stuck_since: None };
    let mut record = Record { relies_on_memory: true, ..record(Effects::Keyed, 0, state) };
    for (memory, deadline) in [(0, 300), (329, 300), (HOUR.unsigned_abs(), u64::MAX)] {
        record.terms.downstream_retention = Duration::from_secs(memory);
        record.terms.deadline = Duration::from_secs(deadline);
        assert_eq!(machine::due(&record.draft()).stamp(at(0)), Some(at(0)));
        assert!(machine::sweep(&seen(record.clone(), at(0))).is_some(), "{memory} {deadline}");
    }
    record.terms.downstream_retention = Duration::MAX;
    record.terms.deadline = Duration::ZERO;
    assert!(machine::sweep(&seen(record, at(i64::from(i32::MAX)))).is_none(), "downstream never forgets");
}

/// What a record must keep from one write to the next, whatever happens.
fn check_step(was: Option<&Record>, event: &str, next: &Record, now: Timestamp) {
    let Some(was) = was else { return };
    let erased = event.starts_with("forget");
    let kept = |expires_at: Timestamp| now < expires_at && !erased;
    if let State::Completed { expires_at, .. } = &was.state
        && kept(*expires_at)
    {
        assert_eq!(was.state, next.state, "{event} changed a stored answer");
    }
    let is_verdict = event.contains('/');
    let is_own_end = ["done", "not run"].contains(&event);
    if matches!(was.state, State::Unknown { .. }) && !is_verdict && !is_own_end && !erased {
        assert!(matches!(next.state, State::Unknown { .. }), "{event} moved an unknown record");
    }
    if matches!(was.state, State::Retryable { .. }) && was.relies_on_memory && !erased {
        assert_eq!(was.created_at, next.created_at, "{event} took doubt for a new key");
    }
    if event.ends_with("foreign") {
        assert_eq!(was, next, "{event}: a superseded attempt wrote");
    }
    if was.created_at == next.created_at {
        assert!(next.attempt >= was.attempt, "{event}: attempts are counted upwards");
    }
    if is_verdict {
        check_statement(was, event, next);
    }
    if !erased && was.created_at == next.created_at {
        check_is_told(was, event, next, now);
    }
}

/// What a statement may do: it frees what is open, and of what is settled it completes what it says was done.
fn check_statement(was: &Record, event: &str, next: &Record) {
    let says_happened = event.starts_with("happened") || event.starts_with("declined");
    let is_done = matches!(next.state, State::Completed { .. }) || next.progress != was.progress;
    if matches!(was.state, State::Retryable { .. } | State::Pending { .. }) {
        assert!(was.state == next.state || (says_happened && is_done), "{event} changed what was settled");
    }
    if was.token == next.token && matches!(next.state, State::Running { .. }) {
        assert!(strength(next) >= strength(was), "{event} replaced stronger evidence");
    }
    if strength(was) == 4 && !matches!(next.state, State::Running { .. }) {
        assert!(is_done, "{event} freed what is known to have happened");
    }
    assert!(
        !matches!(next.state, State::Pending { .. }) || was.state == next.state,
        "{event} began something"
    );
}

fn strength(record: &Record) -> u8 {
    match record.evidence.as_ref().map(|evidence| &evidence.verdict) {
        None => 0,
        Some(Verdict::StillUnknown) => 1,
        Some(Verdict::DidNotHappen { never_will: false }) => 2,
        Some(Verdict::DidNotHappen { never_will: true }) => 3,
        Some(Verdict::Happened(_)) => 4,
    }
}

/// A record that has changed its state says when and by what, in the write that changed it.
fn check_is_told(was: &Record, event: &str, next: &Record, now: Timestamp) {
    let told = |what: &[What]| {
        machine::time_line(next).iter().any(|entry| what.contains(&entry.what) && entry.at == now)
            || next.history.left_out > 0
    };
    let is_told = match (&was.state, &next.state) {
        (was, next) if was.name() == next.name() => true,
        (_, State::Completed { .. }) => told(&[What::Completed]),
        (_, State::Retryable { .. }) => told(&[What::Retryable, What::Lapsed, What::Unknown]),
        (_, State::Unknown { .. }) => told(&[What::Lapsed, What::Unknown]),
        (_, State::Running { .. }) => told(&[What::Attempt]),
        (_, State::Pending { .. }) => true,
    };
    assert!(is_told, "{event} is not in the history: {:?}", next.history);
    if event.contains('/') && was.history != next.history {
        assert!(told(&[What::Probe, What::Webhook, What::Verdict]), "{event} is not in the history");
    }
}

/// What a person is told may be done is what is done when that person does it.
fn check_actions(view: &Seen) {
    for probe in [None, Some(BACKOFF)] {
        for action in machine::actions(view, probe) {
            let by_verdict = |word| {
                let about = About::Attempt(view.record.token);
                let ruling = Ruling { about, probe, ..ruling(Source::Operator, said(word)) };
                draft_of(machine::verdict(view, &ruling)).is_some()
            };
            let is_done = match action.name {
                ActionName::Happened => by_verdict("happened"),
                ActionName::DidNotHappen => by_verdict("did not"),
                ActionName::Ask => by_verdict("unknown"),
                ActionName::Forget => erased(machine::forget(view, FRESH, Force::No)).is_some(),
            };
            assert_eq!(action.refused.is_none(), is_done, "{action:?} of {:?}", view.record);
        }
    }
}

/// However much is said about a record, it stays small, and its tokens are each of one attempt.
fn check_history(record: &Record) {
    let history = &record.history;
    assert!(history.entries.len() <= FIRST_KEPT + LAST_KEPT);
    assert!(history.tokens.len() <= TOKENS_KEPT);
    assert!(!history.tokens.contains(&record.token), "the last attempt is no earlier one");
    let line = machine::time_line(record);
    assert!(line.is_sorted_by_key(|entry| entry.at));
    assert!(line.len() >= history.entries.len());
}

/// What holds of a record at any moment.
fn check_moment(record: &Record, now: Timestamp) {
    check_history(record);
    check_actions(&seen(record.clone(), now));
    let is_finished = matches!(record.state, State::Completed { .. } | State::Retryable { .. });
    let is_open = record.relies_on_memory || record.accepted.is_some();
    let is_settled = is_finished && !(is_open && matches!(record.state, State::Retryable { .. }));
    assert!(is_settled || !machine::may_reap(record, now), "an open record may not be deleted");
    let view = seen(record.clone(), now);
    assert_eq!(
        machine::standing(Some(&view), &policy(record.terms.effects)) == Standing::Absent,
        machine::may_reap(record, now),
        "its caller is told otherwise than the reaper: {record:?}"
    );
    let due = machine::due(&record.draft()).stamp(now);
    let acts = machine::sweep(&view).is_some() || machine::may_reap(record, now);
    if acts {
        assert!(
            due.is_some_and(|due| due <= now),
            "a worker would act, but nobody would find it: {record:?}"
        );
    } else if is_finished || matches!(record.state, State::Running { .. } | State::Pending { .. }) {
        assert!(due.is_none_or(|due| due > now), "due too early: {record:?}");
    }
}

fn erased(forget: Forget) -> Option<Box<Draft>> {
    match forget {
        Forget::Write(draft) => Some(draft),
        Forget::StillRunning | Forget::Unknown | Forget::Absent => None,
    }
}

fn draft_of(ruled: Ruled) -> Option<Box<Draft>> {
    match ruled {
        Ruled::Settles(draft) | Ruled::Keeps(draft) | Ruled::Notes(draft, _) | Ruled::Contradicts(draft) => {
            Some(draft)
        }
        Ruled::Ignores(_, draft) => draft,
        Ruled::Already
        | Ruled::StillRunning
        | Ruled::TooEarly(_)
        | Ruled::Settled
        | Ruled::NothingToAsk
        | Ruled::Absent => None,
    }
}

/// The record after `event`, where it writes; the newest token is the record's own, every other is foreign.
fn step(was: Option<&Record>, event: &str, effects: Effects, now: Timestamp, fresh: Token) -> Option<Record> {
    let view = was.map(|record| seen(record.clone(), now));
    let own = was.map_or(FOREIGN, |record| record.token);
    let token = if event.ends_with("foreign") { FOREIGN } else { own };
    let phase: Arc<str> = "charge".into();
    let outcome = match event.trim_end_matches(" foreign") {
        "done" => Some(done()),
        "not run" => Some(not_run()),
        "in doubt" => Some(Outcome::Unknown(Reason::ConnectionLost)),
        _ => None,
    };
    if let Some(outcome) = outcome {
        return match machine::finish(view.as_ref(), token, &outcome) {
            Finish::Write(draft) => Some(draft.stamp(now)),
            Finish::Already | Finish::Known | Finish::Superseded => None,
        };
    }
    if event.starts_with("decide") {
        let (scope, key) = (Scope::stored([7; 32], None), Key::stored("order-42"));
        let admission = if event == "decide accept" { Admission::Accept } else { Admission::Run };
        let policy = policy(effects);
        let fingerprint = print(if event == "decide other" { 9 } else { 1 });
        let request = Request {
            scope: &scope,
            key: &key,
            route: None,
            fingerprint: &fingerprint,
            policy: &policy,
            token: fresh,
            admission,
            trace: None,
        };
        return match machine::decide(view.as_ref(), &request) {
            Decision::Begin(draft) | Decision::Settle(draft) => Some(draft.stamp(now)),
            Decision::Replay | Decision::Refuse(_) => None,
        };
    }
    if event.starts_with("renew") {
        return match machine::renew(view.as_ref(), token) {
            Renewal::Write(draft) => Some(draft.stamp(now)),
            Renewal::Completed | Renewal::Lost => None,
        };
    }
    let view = view?;
    let draft = match event.trim_end_matches(" foreign") {
        "sweep" => machine::sweep(&view),
        "claim" => machine::claim(&view, fresh, PAUSE_MAX),
        "cancel" => machine::cancel(&view),
        "commit" => machine::commit_phase(&view, token, &phase),
        "call" => machine::call(&view, token, Calling { phase, effects: Effects::Keyed }),
        "forget" => erased(machine::forget(&view, fresh, Force::No)),
        "forget forced" => erased(machine::forget(&view, fresh, Force::Yes)),
        "reap" | "due" | "standing" => None,
        "ask" => machine::ask(&view, Duration::from_secs(20)),
        "probe failed" => machine::probe_failed(&view, BACKOFF, "503"),
        "stop asking" => machine::schedule(&view, None),
        "abandon" => machine::abandon(&view),
        verdict => {
            let earlier = view.record.history.tokens.first().copied().unwrap_or(FOREIGN);
            let (verdict, about) = match verdict.rsplit_once(" about ") {
                Some((verdict, "earlier")) => (verdict, About::Attempt(earlier)),
                Some((verdict, "another use")) => (verdict, About::Attempt(FOREIGN)),
                Some((verdict, "work")) => (verdict, About::Work),
                Some((_, other)) => panic!("about {other:?}?"),
                None => (verdict, About::Attempt(own)),
            };
            draft_of(machine::verdict(&view, &Ruling { token: fresh, about, ..statement(verdict) }))
        }
    };
    Some(draft?.stamp(now))
}

/// Everything that may happen to a record: what the table is about, and statements about other attempts.
fn whatever() -> Vec<String> {
    let mut events = events();
    events.extend(["ask", "probe failed", "stop asking", "abandon"].map(String::from));
    for word in ["happened", "happened bare", "declined", "not found early", "never", "shrug"] {
        for about in ["earlier", "another use", "work"] {
            events.push(format!("{word}/webhook about {about}"));
        }
        events.push(format!("{word}/operator about work"));
        // Webhooks come more than once.
        events.extend([format!("{word}/webhook"), format!("{word}/webhook")]);
    }
    // And most of what happens is ordinary.
    for event in
        ["decide", "decide", "decide accept", "sweep", "sweep", "claim", "in doubt", "not run", "renew"]
    {
        events.extend((0..4).map(|_| event.to_owned()));
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_048, failure_persistence: None, ..ProptestConfig::default() })]

    /// R05, P01, T03, U03, U05, U06, U09, M01, M02. A failing sequence is shrunk and printed, seed and all.
    #[test]
    fn whatever_happens_to_a_record_its_promises_hold(
        effects in prop::sample::select(EFFECTS.to_vec()),
        story in prop::collection::vec((prop::sample::select(whatever()), 0_i64..40_000), 1..60),
    ) {
        let mut record: Option<Record> = None;
        let mut now = at(0);
        for (turn, (event, pause)) in (10_u8..).zip(&story) {
            // Short pauses are as likely as those that outlast a lease, a deadline or a retention.
            let pause = [0, 1, pause % 60, pause % 400, *pause][usize::from(turn) % 5];
            now = now.plus(Duration::from_secs(pause.unsigned_abs()));
            if let Some(record) = &record {
                check_moment(record, now);
            }
            if event == "reap" {
                record = record.filter(|record| !machine::may_reap(record, now));
            } else if let Some(next) = step(record.as_ref(), event, effects, now, Token([turn; 16])) {
                check_step(record.as_ref(), event, &next, now);
                check_moment(&next, now);
                record = Some(next);
            }
        }
    }
}
