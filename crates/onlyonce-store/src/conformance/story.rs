//! Whole histories of a record: the rules of the machine on a real store.

use std::sync::Arc;

use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::Said;
use onlyonce_core::key::Key;
use onlyonce_core::machine::{
    self, About, Admission, Backoff, Decision, Finish, Force, Forget, Renewal, Request, Ruled, Ruling,
    Statement, decide,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Effects, Id, Seen, Source, StateName, Token, Verdict};
use onlyonce_core::refusal::Refusal;
use tokio::sync::Barrier;

use super::world::{
    HOUR, MOMENT, Shared, change, drive, due, insert, list, load, look, lost, mint_token, response, scope,
    swap, wait_until, write,
};
use crate::Swapped;

/// How many workers compete for the same accepted work.
const WORKERS: usize = 8;

fn policy() -> Policy {
    Policy { lease: HOUR, deadline: 2 * HOUR, ..Policy::default() }
}

/// A policy whose attempts lapse soon and can be run again.
fn brief(effects: Effects) -> Policy {
    Policy { lease: MOMENT, effects, ..policy() }
}

fn id() -> Id {
    Id::of(&scope(1), &Key::stored("k"))
}

fn ask(seen: Option<&Seen>, policy: &Policy, token: Token, admission: Admission) -> Decision {
    let request = Request {
        scope: &scope(1),
        key: &Key::stored("k"),
        route: None,
        fingerprint: &Fingerprint { version: 1, raw: [1; 32], canonical: None },
        policy,
        token,
        admission,
        trace: None,
    };
    decide(seen, &request)
}

/// A request that must run; returns the token of its attempt.
async fn begin(store: &Shared, policy: &Policy) -> Token {
    let token = mint_token();
    let begun = drive(store, id(), |seen| match ask(seen, policy, token, Admission::Run) {
        Decision::Begin(draft) => Some(draft),
        other @ (Decision::Replay | Decision::Refuse(_) | Decision::Settle(_)) => {
            panic!("it must run, and not {other:?}")
        }
    });
    begun.await.expect("it begins");
    token
}

async fn finish(store: &Shared, token: Token, body: &'static str) -> Option<Finish> {
    let outcome = Outcome::Completed { response: Some(response(body)), keep_for: None };
    let mut ending = None;
    drive(store, id(), |seen| match machine::finish(seen, token, &outcome) {
        Finish::Write(draft) => Some(draft),
        other @ (Finish::Already | Finish::Known | Finish::Superseded) => {
            ending = Some(other);
            None
        }
    })
    .await;
    ending
}

async fn wait_for_lapse(store: &Shared) {
    let seen = look(store, id()).await;
    let lapse = seen.record.draft().due().stamp(seen.record.written_at).expect("a lease lapses");
    wait_until(store, id(), lapse).await;
}

async fn sweep(store: &Shared) {
    for (id, _) in list(store, due(10)).await {
        drive(store, id, |seen| seen.and_then(machine::sweep)).await;
    }
}

async fn assert_stored(store: &Shared, body: &'static str) {
    let seen = look(store, id()).await;
    let (stored, expires_at) = machine::stored(&seen.record).expect("an answer is stored");
    assert_eq!(*stored, *response(body));
    assert!(expires_at > seen.now);
}

/// P01
pub async fn a_completed_attempt_is_replayed(store: Shared) {
    let token = begin(&store, &policy()).await;
    let refused = ask(load(&store, id()).await.as_ref(), &policy(), mint_token(), Admission::Run);
    assert!(matches!(refused, Decision::Refuse(Refusal::InProgress { .. })), "{refused:?}");
    assert_eq!(finish(&store, token, "paid").await, None);
    let seen = load(&store, id()).await;
    assert_eq!(ask(seen.as_ref(), &policy(), mint_token(), Admission::Run), Decision::Replay);
    assert_stored(&store, "paid").await;
    assert_eq!(finish(&store, token, "twice").await, Some(Finish::Already));
    assert_stored(&store, "paid").await;
}

/// R05, R06
pub async fn a_renewal_in_between_does_not_lose_the_completion(store: Shared) {
    let token = begin(&store, &policy()).await;
    let before_renewal = look(&store, id()).await;
    let Renewal::Write(renewal) = machine::renew(Some(&before_renewal), token) else {
        panic!("it may renew")
    };
    let renewed = write(&store, id(), &before_renewal, renewal).await;
    assert!(renewed.record.written_at >= before_renewal.now);
    let outcome = Outcome::Completed { response: Some(response("paid")), keep_for: None };
    let Finish::Write(done) = machine::finish(Some(&before_renewal), token, &outcome) else {
        panic!("it may end")
    };
    let current = lost(swap(&store, id(), change(Some(before_renewal.revision), done)).await);
    assert_eq!(current.expect("it is shown").revision, renewed.revision);
    assert_eq!(finish(&store, token, "paid").await, None);
    assert_stored(&store, "paid").await;
}

/// R05
pub async fn a_superseded_attempt_cannot_complete(store: Shared) {
    let policy = brief(Effects::Local);
    let first = begin(&store, &policy).await;
    let stale = look(&store, id()).await;
    wait_for_lapse(&store).await;
    let second = begin(&store, &policy).await;
    assert_eq!(look(&store, id()).await.record.attempt, 2);
    assert_eq!(finish(&store, first, "late").await, Some(Finish::Superseded));
    // Also without looking first, from what it read before.
    let outcome = Outcome::Completed { response: Some(response("late")), keep_for: None };
    let Finish::Write(done) = machine::finish(Some(&stale), first, &outcome) else {
        panic!("it knew no better")
    };
    lost(swap(&store, id(), change(Some(stale.revision), done)).await).expect("the later attempt is shown");
    assert_eq!(finish(&store, second, "paid").await, None);
    assert_stored(&store, "paid").await;
}

/// R05, U03
pub async fn the_late_truth_counts(store: Shared) {
    let token = begin(&store, &brief(Effects::Opaque)).await;
    wait_for_lapse(&store).await;
    sweep(&store).await;
    assert_eq!(look(&store, id()).await.record.state.name(), StateName::Unknown);
    assert_eq!(finish(&store, token, "paid").await, None);
    assert_stored(&store, "paid").await;
}

/// U06
pub async fn a_verdict_settles_what_nobody_knew(store: Shared) {
    begin(&store, &brief(Effects::Queryable)).await;
    wait_for_lapse(&store).await;
    sweep(&store).await;
    let ruling = Ruling {
        verdict: Verdict::Happened(Some(response("found"))),
        about: About::Work,
        statement: Statement::by(Source::Probe),
        force: Force::No,
        token: mint_token(),
        probe: Some(Backoff { first: HOUR, max: HOUR, tries_max: 3, jitter_permille: 1000 }),
    };
    let unsure = Ruling { verdict: Verdict::StillUnknown, ..ruling.clone() };
    for ruling in [unsure, ruling] {
        let rule = |seen: Option<&Seen>| match machine::verdict(seen.expect("it is there"), &ruling) {
            Ruled::Settles(draft) | Ruled::Notes(draft, _) => Some(draft),
            other @ (Ruled::Keeps(_)
            | Ruled::Contradicts(_)
            | Ruled::Ignores(..)
            | Ruled::Already
            | Ruled::StillRunning
            | Ruled::TooEarly(_)
            | Ruled::Settled
            | Ruled::NothingToAsk
            | Ruled::Absent) => panic!("it must apply, and not {other:?}"),
        };
        drive(&store, id(), rule).await.expect("a verdict is written");
        assert!(list(&store, due(10)).await.is_empty(), "it is asked again after an hour, or never");
    }
    assert_stored(&store, "found").await;
    let history = &look(&store, id()).await.record.history;
    let told: Vec<_> = history.entries.iter().filter_map(|entry| entry.said).collect();
    assert_eq!(told, [Said::Unknown, Said::Happened], "who said what is kept with the record");
}

/// M01
pub async fn the_sweeper_finds_a_lapsed_lease(store: Shared) {
    begin(&store, &brief(Effects::Local)).await;
    wait_for_lapse(&store).await;
    let found = list(&store, due(10)).await;
    assert_eq!(found.len(), 1);
    assert!(machine::sweep(&found[0].1).is_some(), "a listing shows the clock by which it is due");
    sweep(&store).await;
    assert_eq!(look(&store, id()).await.record.state.name(), StateName::Retryable);
    assert!(list(&store, due(10)).await.is_empty());
}

/// M04, W07
pub async fn accepted_work_is_claimed_once(store: Shared) {
    let Decision::Begin(accepted) = ask(None, &policy(), mint_token(), Admission::Accept) else {
        panic!("an absent key is accepted")
    };
    insert(&store, (id(), accepted)).await;
    let all_have_looked = Arc::new(Barrier::new(WORKERS));
    let workers: Vec<_> =
        (0..WORKERS).map(|_| tokio::spawn(claim(store.clone(), all_have_looked.clone()))).collect();
    let mut claims = 0;
    for worker in workers {
        claims += usize::from(worker.await.expect("a worker ends"));
    }
    assert_eq!(claims, 1);
}

async fn claim(store: Shared, all_have_looked: Arc<Barrier>) -> bool {
    let seen = look(&store, id()).await;
    all_have_looked.wait().await;
    let claim = machine::claim(&seen, mint_token(), HOUR).expect("it was pending when we looked");
    match swap(&store, id(), change(Some(seen.revision), claim)).await {
        Swapped::Applied(_) => true,
        Swapped::Lost(current) => {
            let current = current.expect("nobody deletes it");
            assert_eq!(machine::claim(&current, mint_token(), HOUR), None, "another has it");
            false
        }
    }
}

/// T02
pub async fn an_expired_key_runs_anew(store: Shared) {
    let policy = Policy { retention: MOMENT, ..policy() };
    let token = begin(&store, &policy).await;
    assert_eq!(finish(&store, token, "old").await, None);
    wait_for_lapse(&store).await;
    let anew = begin(&store, &policy).await;
    let seen = look(&store, id()).await;
    assert_eq!((seen.record.attempt, seen.record.token), (1, anew));
    assert_eq!(seen.record.created_at, seen.record.written_at);
    assert_eq!(finish(&store, token, "older still").await, Some(Finish::Superseded));
}

/// M02
pub async fn a_forgotten_record_is_gone_after_reaping(store: Shared) {
    let token = begin(&store, &policy()).await;
    let forget = |force| {
        move |seen: Option<&Seen>| match machine::forget(seen?, mint_token(), force) {
            Forget::Write(draft) => Some(draft),
            Forget::StillRunning | Forget::Unknown | Forget::Absent => None,
        }
    };
    assert_eq!(drive(&store, id(), forget(Force::No)).await, None, "its lease lives");
    drive(&store, id(), forget(Force::Yes)).await.expect("it is forgotten");
    assert_eq!(store.reap(10).await.expect("an answer"), 1);
    assert_eq!(load(&store, id()).await, None);
    assert_eq!(finish(&store, token, "late").await, Some(Finish::Superseded));
}
