//! What an attempt ended with, and what an answer's status means.

use std::sync::Arc;
use std::time::Duration;

use crate::policy::{On5xx, Policy};
use crate::record::{Effects, Reason, Response};

/// After a 401 or 403 the caller corrects its credentials and comes back soon; the key is kept only so long.
pub const KEPT_AFTER_DENIAL: Duration = Duration::from_secs(5 * 60);

/// What an attempt ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work is done.
    Completed {
        /// The answer; none where it is not kept.
        response: Option<Arc<Response>>,
        /// How long to keep it, where the handler said so.
        keep_for: Option<Duration>,
    },
    /// The work was certainly not done.
    DidNotRun {
        /// What the client was told to wait.
        retry_after: Option<Duration>,
        /// How long the key is kept for this request; the retention where none.
        keep_for: Option<Duration>,
    },
    /// The work may have been done.
    Unknown(Reason),
}

/// What a handler or service says about its own answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// What became of the work, where it says so.
    pub outcome: Option<SaidOutcome>,
    /// How long to keep the answer; zero: do not keep it at all.
    pub keep_for: Option<Duration>,
}

/// What a handler or service says became of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidOutcome {
    /// It did not run, whatever the status.
    DidNotRun,
    /// Nobody knows, whatever the status, and why.
    Unknown(Reason),
}

/// What the answer of an attempt means, before its body is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Done: store the answer and replay it.
    Completed,
    /// Not done: pass the answer on, the key may be tried again.
    DidNotRun {
        /// How long the key is kept; the retention where none.
        keep_for: Option<Duration>,
    },
    /// Perhaps done: pass the answer on, find out.
    Unknown(Reason),
}

/// What `status` means for attempt number `attempt` of work with these effects.
///
/// In this order: what the handler said; a keyed rerun's 409 or 425; `release`; `unknown`; any other 5xx by `on_5xx`;
/// everything else is done.
pub fn meaning(status: u16, said: Said, attempt: u32, effects: Effects, policy: &Policy) -> Meaning {
    match said.outcome {
        Some(SaidOutcome::DidNotRun) => return Meaning::DidNotRun { keep_for: None },
        Some(SaidOutcome::Unknown(reason)) => return Meaning::Unknown(reason),
        None => {}
    }
    // Downstream says that the first attempt is still under way there: its answer is not this work's answer.
    if effects == Effects::Keyed && attempt > 1 && matches!(status, 409 | 425) {
        return Meaning::DidNotRun { keep_for: None };
    }
    if policy.release.contains(&status) {
        let keep_for = matches!(status, 401 | 403).then_some(KEPT_AFTER_DENIAL);
        return Meaning::DidNotRun { keep_for };
    }
    if policy.unknown.contains(&status) {
        return Meaning::Unknown(Reason::Status(status));
    }
    if !(500..=599).contains(&status) {
        return Meaning::Completed;
    }
    match (policy.on_5xx, effects) {
        (On5xx::Store, _) => Meaning::Completed,
        (On5xx::Unknown, _) | (On5xx::Retry, Effects::Queryable) => Meaning::Unknown(Reason::Status(status)),
        (On5xx::Retry, Effects::Local | Effects::Keyed | Effects::Opaque) => {
            Meaning::DidNotRun { keep_for: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    fn means(status: u16, effects: Effects, policy: &Policy) -> Meaning {
        meaning(status, Said::default(), 1, effects, policy)
    }

    const RELEASED: Meaning = Meaning::DidNotRun { keep_for: None };

    /// C01
    #[test]
    fn successes_redirects_and_client_errors_are_kept() {
        let policy = Policy::default();
        for status in [200, 201, 202, 204, 205, 301, 303, 307, 400, 402, 404, 409, 410, 422, 451] {
            assert_eq!(means(status, Effects::Opaque, &policy), Meaning::Completed, "{status}");
        }
    }

    /// C02
    #[test]
    fn denials_and_throttles_release_the_key_and_a_denial_keeps_it_only_briefly() {
        let policy = Policy::default();
        for status in [401, 403] {
            let expected = Meaning::DidNotRun { keep_for: Some(KEPT_AFTER_DENIAL) };
            assert_eq!(means(status, Effects::Opaque, &policy), expected, "{status}");
        }
        for status in [425, 429] {
            assert_eq!(means(status, Effects::Opaque, &policy), RELEASED, "{status}");
        }
    }

    /// C02
    #[test]
    fn timeouts_of_those_behind_are_doubt() {
        let policy = Policy::default();
        for status in [408, 502, 504] {
            let expected = Meaning::Unknown(Reason::Status(status));
            assert_eq!(means(status, Effects::Opaque, &policy), expected, "{status}");
        }
    }

    /// C02, D03
    #[test]
    fn the_conflict_preset_keeps_every_client_error() {
        let policy = Policy::of(Dialect::conflict());
        for status in [401, 403, 408, 425, 429] {
            assert_eq!(means(status, Effects::Opaque, &policy), Meaning::Completed, "{status}");
        }
        assert_eq!(means(502, Effects::Opaque, &policy), Meaning::Unknown(Reason::Status(502)));
    }

    /// C03
    #[test]
    fn a_server_error_is_retried_kept_or_doubted_by_setting() {
        let with = |on_5xx| Policy { on_5xx, ..Policy::default() };
        for status in [500, 501, 503, 507, 599] {
            assert_eq!(means(status, Effects::Opaque, &with(On5xx::Retry)), RELEASED, "{status}");
            assert_eq!(means(status, Effects::Opaque, &with(On5xx::Store)), Meaning::Completed, "{status}");
            let doubt = Meaning::Unknown(Reason::Status(status));
            assert_eq!(means(status, Effects::Opaque, &with(On5xx::Unknown)), doubt, "{status}");
            assert_eq!(means(status, Effects::Queryable, &with(On5xx::Retry)), doubt, "{status}");
        }
    }

    /// D02
    #[test]
    fn the_stripe_preset_keeps_server_errors() {
        let policy = Policy::of(Dialect::stripe());
        for status in [408, 500, 502, 503, 504] {
            assert_eq!(means(status, Effects::Opaque, &policy), Meaning::Completed, "{status}");
        }
    }

    #[test]
    fn a_keyed_rerun_does_not_keep_what_downstream_says_of_the_first_attempt() {
        let policy = Policy::default();
        for status in [409, 425] {
            assert_eq!(meaning(status, Said::default(), 2, Effects::Keyed, &policy), RELEASED, "{status}");
        }
        assert_eq!(meaning(409, Said::default(), 1, Effects::Keyed, &policy), Meaning::Completed);
        assert_eq!(meaning(409, Said::default(), 2, Effects::Opaque, &policy), Meaning::Completed);
    }

    /// C05
    #[test]
    fn what_the_handler_says_beats_the_status() {
        let policy = Policy::default();
        let said = |outcome| Said { outcome: Some(outcome), keep_for: None };
        assert_eq!(meaning(201, said(SaidOutcome::DidNotRun), 1, Effects::Opaque, &policy), RELEASED);
        let doubt = Meaning::Unknown(Reason::Said);
        assert_eq!(
            meaning(500, said(SaidOutcome::Unknown(Reason::Said)), 1, Effects::Opaque, &policy),
            doubt
        );
    }
}
