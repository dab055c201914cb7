//! The batcher on tokio's tasks. Its schedules are tested with shuttle, next to its code.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use onlyonce_core::record::Id;
use onlyonce_store::batch::{Batcher, Limits};
use onlyonce_store::{Error, ErrorKind};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const LIMITS: Limits = Limits { rows_max: 100, bytes_max: 1_000, in_flight_max: 1 };
/// The first write is carried by its caller.
const TWO_PLACES: Limits = Limits { in_flight_max: 2, ..LIMITS };

/// A batcher whose flushes wait to be let through, and what each of them carried.
struct Gated {
    batcher: Batcher<u32, u32>,
    gate: Arc<Semaphore>,
    batches: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Gated {
    fn new(limits: Limits) -> Self {
        let (gate, batches) = (Arc::new(Semaphore::new(0)), Arc::<Mutex<Vec<Vec<u32>>>>::default());
        let batcher = Batcher::new(limits, {
            let (gate, batches) = (gate.clone(), batches.clone());
            move |rows: Vec<u32>| {
                batches.lock().unwrap().push(rows.clone());
                let gate = gate.clone();
                async move {
                    gate.acquire().await.unwrap().forget();
                    rows.into_iter().map(answer).collect()
                }
            }
        });
        Self { batcher, gate, batches }
    }

    /// Hands in a row under an id of its own.
    fn submit(&self, row: u32, bytes: usize) -> JoinHandle<Result<u32, Error>> {
        let batcher = self.batcher.clone();
        tokio::spawn(async move { batcher.submit(id(row), bytes, row).await })
    }

    /// Hands in a row, and the next of the same id, a hundred higher, when it is answered.
    fn submit_twice(&self, row: u32) -> JoinHandle<()> {
        let batcher = self.batcher.clone();
        tokio::spawn(async move {
            batcher.submit(id(row), 1, row).await.unwrap();
            batcher.submit(id(row), 1, row + 100).await.unwrap();
        })
    }

    async fn until_batches(&self, count: usize) {
        while self.batches.lock().unwrap().len() < count {
            tokio::task::yield_now().await;
        }
    }
}

/// Rows above 900 are bad.
fn answer(row: u32) -> Result<u32, Error> {
    match row {
        0..=900 => Ok(row),
        _ => Err(Error::new(ErrorKind::Other, format!("row {row} is bad"))),
    }
}

fn id(row: u32) -> Id {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&row.to_be_bytes());
    Id(id)
}

/// Lets every task that can go on do so: on one thread they take turns.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// What has no order goes together, whatever it is about, and is answered like the rest.
#[tokio::test]
async fn looks_go_together_and_keep_no_order() {
    let gated = Gated::new(LIMITS);
    let ask = |row| {
        let batcher = gated.batcher.clone();
        tokio::spawn(async move { batcher.ask(1, row).await })
    };
    let first = ask(5);
    gated.until_batches(1).await;
    let rest: Vec<_> = [5, 5, 901].map(ask).into();
    settle().await;
    gated.gate.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap(), 5);
    let mut answers = Vec::new();
    for look in rest {
        answers.push(look.await.unwrap().ok());
    }
    assert_eq!(answers, [Some(5), Some(5), None]);
    assert_eq!(*gated.batches.lock().unwrap(), [vec![5], vec![5, 5, 901]]);
}

#[tokio::test]
async fn a_lone_write_goes_at_once_and_those_that_come_meanwhile_go_together() {
    let gated = Gated::new(LIMITS);
    let first = gated.submit(0, 1);
    gated.until_batches(1).await;
    let rest: Vec<_> = (1..=10).map(|row| gated.submit(row, 1)).collect();
    settle().await;
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0]], "no second batch while the first is under way");
    assert!(!first.is_finished(), "nobody is answered before the flush has ended");
    gated.gate.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap(), 0);
    for (row, answer) in (1..).zip(rest) {
        assert_eq!(answer.await.unwrap().unwrap(), row);
    }
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0], (1..=10).collect()]);
}

#[tokio::test]
async fn a_batch_is_bounded_in_rows_and_bytes_and_a_large_row_goes_alone() {
    let gated = Gated::new(Limits { rows_max: 3, ..LIMITS });
    let mut answers = vec![gated.submit(0, 1)];
    gated.until_batches(1).await;
    for (row, bytes) in [(1, 1), (2, 1), (3, 1), (4, 600), (5, 600), (6, 5_000), (7, 1)] {
        answers.push(gated.submit(row, bytes));
    }
    settle().await;
    gated.gate.add_permits(100);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    let expected = [vec![0], vec![1, 2, 3], vec![4], vec![5], vec![6], vec![7]];
    assert_eq!(*gated.batches.lock().unwrap(), expected);
}

#[tokio::test]
async fn as_many_batches_as_allowed_are_under_way_at_once() {
    let gated = Gated::new(Limits { in_flight_max: 2, ..LIMITS });
    let answers: Vec<_> = (0..4).map(|row| gated.submit(row, 1)).collect();
    settle().await;
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0], vec![1]]);
    gated.gate.add_permits(100);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0], vec![1], vec![2, 3]]);
}

#[tokio::test]
async fn beside_a_lone_write_another_goes_at_once_and_beside_a_batch_only_a_much_larger_one() {
    let gated = Gated::new(Limits { in_flight_max: 2, ..LIMITS });
    let mut rows: Vec<_> = (1..=5).map(|row| gated.submit(row, 1)).collect();
    gated.until_batches(2).await;
    settle().await;
    gated.gate.add_permits(2);
    gated.until_batches(3).await;
    rows.extend((6..=10).map(|row| gated.submit(row, 1)));
    settle().await;
    assert_eq!(*gated.batches.lock().unwrap(), [vec![1], vec![2], vec![3, 4, 5]], "five are not twice three");
    rows.push(gated.submit(11, 1));
    gated.until_batches(4).await;
    gated.gate.add_permits(2);
    for (row, answer) in (1..).zip(rows) {
        assert_eq!(answer.await.unwrap().unwrap(), row);
    }
    assert_eq!(gated.batches.lock().unwrap()[3..], [vec![6, 7, 8, 9, 10, 11]]);
}

/// Where the store is prompt, the next batch is sent while the one before is executed.
#[tokio::test(start_paused = true)]
async fn once_batches_are_prompt_one_that_is_as_large_goes_beside_another() {
    let gated = Gated::new(Limits { in_flight_max: 2, ..LIMITS });
    let mut next = 0;
    let mut submit = |rows: u32| {
        let rows = next..next + rows;
        next = rows.end;
        rows.map(|row| gated.submit(row, 1)).collect::<Vec<_>>()
    };
    // Two lone ones and a batch, again and again: on a clock that stands still all of them are prompt.
    for _ in 0..30 {
        let answers = submit(5);
        settle().await;
        gated.gate.add_permits(3);
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
    }
    let mut answers = submit(5);
    settle().await;
    gated.gate.add_permits(2);
    settle().await;
    gated.batches.lock().unwrap().clear();
    answers.extend(submit(2));
    settle().await;
    assert!(gated.batches.lock().unwrap().is_empty(), "two are fewer than three");
    answers.extend(submit(1));
    settle().await;
    assert_eq!(*gated.batches.lock().unwrap(), [vec![155, 156, 157]]);
    gated.gate.add_permits(2);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
}

/// A lone write has ended, and a batch of two is under way, whose callers write again when they are told.
async fn with_two_that_write_twice() -> (Gated, JoinHandle<Result<u32, Error>>, [JoinHandle<()>; 2]) {
    let gated = Gated::new(LIMITS);
    let first = gated.submit(1, 1);
    gated.until_batches(1).await;
    let twice = [gated.submit_twice(2), gated.submit_twice(3)];
    settle().await;
    gated.gate.add_permits(1);
    gated.until_batches(2).await;
    (gated, first, twice)
}

/// What the callers of a batch write next goes together with what came meanwhile, where that was little.
#[tokio::test]
async fn whoever_was_told_may_come_along_with_the_next_batch() {
    let (gated, first, twice) = with_two_that_write_twice().await;
    let meanwhile = gated.submit(4, 1);
    settle().await;
    gated.gate.add_permits(2);
    for task in twice {
        task.await.unwrap();
    }
    assert_eq!((first.await.unwrap().unwrap(), meanwhile.await.unwrap().unwrap()), (1, 4));
    let mut batches = gated.batches.lock().unwrap().clone();
    batches[2].sort_unstable();
    assert_eq!(batches, [vec![1], vec![2, 3], vec![4, 102, 103]]);
}

/// The store is at work while the callers of a batch are told.
#[tokio::test(start_paused = true)]
async fn many_that_wait_set_off_before_anybody_is_told() {
    let batches = while_many_wait(Duration::ZERO).await;
    assert_eq!(batches, [vec![1], vec![2, 3], (10..20).collect(), vec![102, 103]]);
}

/// On a slow disk as many as possible share the next batch.
#[tokio::test(start_paused = true)]
async fn after_a_batch_that_took_long_who_was_told_may_come_along() {
    let batches = while_many_wait(Duration::from_millis(5)).await;
    assert_eq!(batches, [vec![1], vec![2, 3], (10..20).chain([102, 103]).collect()]);
}

/// Two callers that write twice, and ten others that come while a batch of the two takes so long: what went together.
async fn while_many_wait(span: Duration) -> Vec<Vec<u32>> {
    let (gated, first, twice) = with_two_that_write_twice().await;
    let meanwhile: Vec<_> = (10..20).map(|row| gated.submit(row, 1)).collect();
    settle().await;
    tokio::time::advance(span).await;
    gated.gate.add_permits(3);
    for task in twice {
        task.await.unwrap();
    }
    assert_eq!(first.await.unwrap().unwrap(), 1);
    for (row, answer) in (10..).zip(meanwhile) {
        assert_eq!(answer.await.unwrap().unwrap(), row);
    }
    let mut batches = gated.batches.lock().unwrap().clone();
    for batch in &mut batches {
        batch.sort_unstable();
    }
    batches
}

#[tokio::test]
async fn writes_of_one_id_go_one_batch_after_the_other() {
    let gated = Gated::new(Limits { in_flight_max: 3, ..LIMITS });
    let submit = |row| {
        let batcher = gated.batcher.clone();
        tokio::spawn(async move { batcher.submit(id(77), 1, row).await })
    };
    let answers: Vec<_> = (0..3).map(submit).collect();
    settle().await;
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0]], "places are free, but the id is taken");
    gated.gate.add_permits(100);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0], vec![1], vec![2]]);
}

#[tokio::test]
async fn one_bad_row_fails_alone() {
    let gated = Gated::new(LIMITS);
    gated.gate.add_permits(100);
    let answers: Vec<_> = [1, 2, 999, 3].map(|row| gated.submit(row, 1)).into_iter().collect();
    let mut failed = Vec::new();
    for answer in answers {
        failed.extend(answer.await.unwrap().err().map(|error| error.to_string()));
    }
    assert_eq!(failed, ["row 999 is bad"]);
}

/// R07
#[tokio::test]
async fn a_caller_that_goes_away_does_not_take_its_write_with_it() {
    let gated = Gated::new(LIMITS);
    let first = gated.submit(0, 1);
    gated.until_batches(1).await;
    let (leaver, stayer) = (gated.submit(1, 1), gated.submit(2, 1));
    settle().await;
    first.abort();
    leaver.abort();
    settle().await;
    gated.gate.add_permits(100);
    assert_eq!(stayer.await.unwrap().unwrap(), 2);
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0], vec![1, 2]]);
}

/// R07: the same for one that carries its own, since nothing else is under way.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_what_it_carried_to_a_task() {
    let gated = Gated::new(TWO_PLACES);
    let first = gated.submit(0, 1);
    gated.until_batches(1).await;
    let next = gated.batcher.clone();
    let next = tokio::spawn(async move { next.submit(id(0), 1, 100).await });
    settle().await;
    first.abort();
    settle().await;
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0]], "it is still under way");
    gated.gate.add_permits(100);
    assert_eq!(next.await.unwrap().unwrap(), 100);
    assert_eq!(*gated.batches.lock().unwrap(), [vec![0], vec![100]]);
}

/// E07: one that stays and does not carry its own on is no reason for the others to wait.
#[tokio::test]
async fn a_caller_that_does_not_come_to_carry_its_write_keeps_one_place_and_not_the_last() {
    let gated = Gated::new(TWO_PLACES);
    let mut left = pin!(gated.batcher.submit(id(0), 1, 0));
    let is_answered = poll_fn(|context| Poll::Ready(left.as_mut().poll(context).is_ready())).await;
    assert!(!is_answered, "the gate is closed");
    gated.gate.add_permits(100);
    let others: Vec<_> = (1..40).map(|row| (row, gated.submit(row, 1))).collect();
    for (row, other) in others {
        assert_eq!(other.await.unwrap().unwrap(), row);
    }
    assert_eq!(left.await.unwrap(), 0);
}

/// X05: whether it was written is not known, and nobody hangs.
#[tokio::test]
async fn a_flush_that_panics_answers_unavailable_and_the_next_one_goes() {
    for (panics_at_once, limits) in [(true, LIMITS), (false, LIMITS), (true, TWO_PLACES), (false, TWO_PLACES)]
    {
        let batcher = Batcher::new(limits, move |rows: Vec<u32>| {
            assert!(!(panics_at_once && rows[0] == 1), "at once");
            async move {
                tokio::task::yield_now().await;
                assert!(rows[0] != 1, "later");
                rows.into_iter().map(Ok).collect()
            }
        });
        let error = batcher.submit(id(1), 1, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(batcher.submit(id(1), 1, 2).await.unwrap(), 2);
    }
}

/// X05
#[tokio::test]
async fn a_flush_that_answers_too_few_is_believed_in_nothing() {
    for limits in [LIMITS, TWO_PLACES] {
        let batcher: Batcher<u32, u32> = Batcher::new(limits, async |_| Vec::new());
        assert_eq!(batcher.submit(id(1), 1, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

/// A store may outlive the runtime that its batch was under way on.
#[test]
fn a_runtime_that_shuts_down_leaves_the_batcher_usable() {
    for limits in [LIMITS, TWO_PLACES] {
        outlives_its_runtime(&Gated::new(limits));
    }
}

fn outlives_its_runtime(gated: &Gated) {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let first = runtime();
    first.block_on(async {
        gated.submit(1, 1);
        gated.until_batches(1).await;
        let next = gated.batcher.clone();
        tokio::spawn(async move { next.submit(id(1), 1, 2).await });
        settle().await;
    });
    first.shutdown_timeout(Duration::from_secs(10));
    gated.gate.add_permits(100);
    assert_eq!(runtime().block_on(gated.batcher.submit(id(1), 1, 3)).unwrap(), 3);
    assert_eq!(*gated.batches.lock().unwrap(), [vec![1], vec![3]], "what waited was given up");
}
