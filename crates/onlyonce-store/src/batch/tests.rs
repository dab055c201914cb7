//! The batcher under schedules that `shuttle` makes up. Shuttle fails a test in which every task waits, so a lost wake-up
//! shows as a deadlock. Here the lock and the tasks are shuttle's; `tests/it/postgres` uses
//! tokio's.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::scheduler::DfsScheduler;
use shuttle::sync::Mutex;
use shuttle::{Config, Runner, future, thread};

use super::*;

const ITERATIONS: usize = 3_000;
/// How many preemptions at most a bug may need to be found by the PCT scheduler.
const PCT_DEPTH: usize = 4;
/// More schedules than the smallest case has: all of them run.
const DFS_ITERATIONS: usize = 100_000;

const LIMITS: Limits = Limits { rows_max: 3, bytes_max: 10, in_flight_max: 2 };

/// What the flushes saw; it panics on what they must not see.
#[derive(Default)]
struct Log {
    in_flight: usize,
    ids_in_flight: HashSet<u8>,
    /// Every item by id, in the order flushed.
    flushed: HashMap<u8, Vec<u32>>,
}

#[derive(Clone, Copy)]
struct Item {
    id: u8,
    bytes: usize,
    number: u32,
}

impl Log {
    fn begin(&mut self, items: &[Item], limits: Limits) {
        self.in_flight += 1;
        assert!(self.in_flight <= limits.in_flight_max, "{} batches at once", self.in_flight);
        assert!(!items.is_empty() && items.len() <= limits.rows_max, "a batch of {}", items.len());
        let bytes: usize = items.iter().map(|item| item.bytes).sum();
        assert!(items.len() == 1 || bytes <= limits.bytes_max, "a batch of {bytes} bytes");
        for item in items {
            assert!(self.ids_in_flight.insert(item.id), "id {} is in flight twice", item.id);
        }
    }

    fn end(&mut self, items: &[Item]) {
        self.in_flight -= 1;
        for item in items {
            self.ids_in_flight.remove(&item.id);
            self.flushed.entry(item.id).or_default().push(item.number);
        }
    }
}

fn logging(limits: Limits, log: &Arc<Mutex<Log>>) -> Batcher<Item, u32> {
    let log = log.clone();
    Batcher::new(limits, move |items: Vec<Item>| {
        let log = log.clone();
        async move {
            log.lock().unwrap().begin(&items, limits);
            yield_now().await;
            log.lock().unwrap().end(&items);
            items.iter().map(|item| Ok(item.number)).collect()
        }
    })
}

/// Callers on a few ids, each with several writes in sequence. Every write is answered, and none before its flush ended.
fn many_callers(callers: u32, writes_each: u32, limits: Limits) {
    let log = Arc::new(Mutex::new(Log::default()));
    let batcher = logging(limits, &log);
    let threads: Vec<_> = (0..callers)
        .map(|caller| {
            let (batcher, log) = (batcher.clone(), log.clone());
            thread::spawn(move || future::block_on(call(&batcher, &log, caller, writes_each)))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let log = log.lock().unwrap();
    let flushed: usize = log.flushed.values().map(Vec::len).sum();
    assert_eq!(flushed, (callers * writes_each) as usize, "each write is flushed once");
    assert_eq!(log.in_flight, 0);
}

async fn call(batcher: &Batcher<Item, u32>, log: &Mutex<Log>, caller: u32, writes: u32) {
    for write in 0..writes {
        let id = u8::try_from((caller + write) % 3).unwrap();
        let item = Item { id, bytes: (caller * 5) as usize % 12, number: caller * 100 + write };
        assert_eq!(batcher.submit(Id([id; 32]), item.bytes, item).await.unwrap(), item.number);
        let log = log.lock().unwrap();
        assert!(log.flushed[&id].contains(&item.number), "answered before the flush had ended");
    }
}

/// E07
#[test]
fn every_caller_is_answered_after_its_flush_on_random_schedules() {
    shuttle::check_random(|| many_callers(4, 3, LIMITS), ITERATIONS);
}

/// E07
#[test]
fn every_caller_is_answered_after_its_flush_on_mean_schedules() {
    shuttle::check_pct(|| many_callers(4, 3, LIMITS), ITERATIONS, PCT_DEPTH);
}

/// E07: the queue alone, as the batcher uses it, on every schedule of two writers.
#[test]
fn every_write_is_flushed_once_on_each_schedule() {
    let scheduler = DfsScheduler::new(Some(DFS_ITERATIONS), false);
    let played = Runner::new(scheduler, Config::default()).run(|| {
        let queue = Arc::new(Mutex::new(Queue::new(Limits { in_flight_max: 1, ..LIMITS })));
        let flushed = Arc::new(std::sync::Mutex::new(Vec::new()));
        let writer = thread::spawn({
            let (queue, flushed) = (queue.clone(), flushed.clone());
            move || {
                for (id, number) in [(1, 10), (1, 11)] {
                    flush_all(&queue, &flushed, id, number);
                }
            }
        });
        for (id, number) in [(1, 20), (2, 21)] {
            flush_all(&queue, &flushed, id, number);
        }
        writer.join().unwrap();
        let mut flushed = flushed.lock().unwrap().clone();
        flushed.sort_unstable();
        assert_eq!(flushed, [10, 11, 20, 21]);
    });
    assert!(played < DFS_ITERATIONS, "there are more schedules than {DFS_ITERATIONS}");
}

/// Submits a write and flushes the batches it is given, as a task of the batcher does.
fn flush_all(queue: &Mutex<Queue<u32>>, flushed: &std::sync::Mutex<Vec<u32>>, id: u8, number: u32) {
    let mut batches = {
        let mut queue = queue.lock().unwrap();
        queue.push(Id([id; 32]), 1, number);
        queue.take_all()
    };
    while let Some(batch) = batches.pop() {
        assert!(batches.is_empty(), "one place, one batch");
        flushed.lock().unwrap().extend(batch.loads);
        let mut queue = queue.lock().unwrap();
        queue.end(&batch.ids);
        batches = queue.take_all();
    }
}

/// E07: writes of one id are flushed in the order they were submitted.
#[test]
fn writes_of_one_id_keep_their_order() {
    shuttle::check_random(
        || {
            let log = Arc::new(Mutex::new(Log::default()));
            let batcher = logging(LIMITS, &log);
            let others = {
                let (batcher, log) = (batcher.clone(), log.clone());
                thread::spawn(move || future::block_on(call(&batcher, &log, 1, 3)))
            };
            future::block_on(async {
                let item = |number| Item { id: 9, bytes: 1, number };
                let mut answers: Vec<_> =
                    (0..5).map(|number| Box::pin(batcher.submit(Id([9; 32]), 1, item(number)))).collect();
                // Polled once, each write is submitted, without waiting for the one before.
                poll_fn(|context| {
                    for answer in &mut answers {
                        assert!(answer.as_mut().poll(context).is_pending());
                    }
                    Poll::Ready(())
                })
                .await;
                for answer in answers {
                    answer.await.unwrap();
                }
            });
            others.join().unwrap();
            assert_eq!(log.lock().unwrap().flushed[&9], [0, 1, 2, 3, 4]);
        },
        ITERATIONS,
    );
}

/// R07: a cancelled caller delays nobody, and its write is carried out.
#[test]
fn a_caller_that_goes_away_strands_nobody() {
    shuttle::check_random(
        || {
            let log = Arc::new(Mutex::new(Log::default()));
            let batcher = logging(Limits { in_flight_max: 1, ..LIMITS }, &log);
            let leaver = {
                let batcher = batcher.clone();
                thread::spawn(move || {
                    future::block_on(async {
                        let item = Item { id: 0, bytes: 1, number: 7 };
                        let mut answer = Box::pin(batcher.submit(Id([0; 32]), 1, item));
                        poll_fn(|context| Poll::Ready(answer.as_mut().poll(context).is_ready())).await;
                    });
                })
            };
            future::block_on(call(&batcher, &log, 2, 3));
            leaver.join().unwrap();
            future::block_on(call(&batcher, &log, 3, 1));
            assert!(log.lock().unwrap().flushed[&0].contains(&7));
        },
        ITERATIONS,
    );
}

/// How many rows are sent beside a batch of ten after batches took `spans`. Writes are submitted one by one, up to twice as many.
fn beside_ten_after(spans: &[Duration]) -> usize {
    let mut queue = Queue::new(Limits { rows_max: 100, bytes_max: usize::MAX, in_flight_max: 2 });
    let mut now = Instant::now();
    for span in spans {
        now += *span;
        queue.answered(10, now - *span, now);
    }
    let mut push = |number: u8| {
        queue.push(Id([number; 32]), 1, number);
        queue.take_all().iter().map(|batch| batch.ids.len()).sum::<usize>()
    };
    assert_eq!((push(100), push(101)), (1, 1), "two lone writes, beside which nothing goes");
    assert_eq!((0..10).map(&mut push).sum::<usize>(), 0);
    queue.end(&[Id([100; 32])]);
    queue.end(&[Id([101; 32])]);
    assert_eq!(queue.take_all()[0].ids.len(), 10);
    let mut push = |number: u8| {
        queue.push(Id([number; 32]), 1, number);
        queue.take_all().iter().map(|batch| batch.ids.len()).sum::<usize>()
    };
    (10..30).map(&mut push).find(|rows| *rows > 0).expect("twice as many always go")
}

const PROMPT: Duration = Duration::from_micros(500);
const SLOW: Duration = Duration::from_millis(5);

/// E07: on a slow disk as many writes as possible share the next flush.
#[test]
fn as_large_a_batch_goes_beside_another_only_while_batches_are_prompt() {
    assert_eq!(beside_ten_after(&[]), 20, "nothing is known yet");
    assert_eq!(beside_ten_after(&[PROMPT; 30]), 10);
    assert_eq!(beside_ten_after(&[SLOW; 30]), 20);
    assert_eq!(beside_ten_after(&[[PROMPT; 30], [SLOW; 30]].concat()), 20, "it has become slow");
    assert_eq!(beside_ten_after(&[[SLOW; 30], [PROMPT; 30]].concat()), 10, "and is prompt again");
    assert_eq!(beside_ten_after(&[&[PROMPT; 30][..], &[SLOW]].concat()), 10, "one that was late is no pace");
}

/// A batch is not slow because it waited behind another on the same connection.
#[test]
fn a_batch_is_prompt_by_its_own_time() {
    let mut queue = Queue::<u8>::new(Limits { rows_max: 100, bytes_max: usize::MAX, in_flight_max: 2 });
    for number in 0..8 {
        queue.push_free(1, number);
    }
    let sent = Instant::now();
    let first = sent + Duration::from_millis(1);
    let second = first + Duration::from_millis(1);
    assert!(queue.answered(10, sent, first));
    assert!(queue.answered(10, sent, second), "it took a millisecond, and waited for another");
    assert!(!queue.answered(10, second, second + SLOW));
}

/// E07: at any pace, a batch sent beside another is at least as large, and every write is sent.
#[test]
fn beside_a_batch_goes_what_is_large_enough_on_random_schedules() {
    const LIMITS: Limits = Limits { rows_max: 5, bytes_max: usize::MAX, in_flight_max: 2 };
    shuttle::check_random(
        || {
            // The queue, and the rows of each batch in flight.
            let shared = Arc::new(Mutex::new((Queue::new(LIMITS), Vec::new())));
            let writers: Vec<_> = (0..4_u8)
                .map(|writer| {
                    let shared = shared.clone();
                    thread::spawn(move || (0..4).for_each(|write| pace(&shared, writer * 4 + write, LIMITS)))
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            let (queue, in_flight) = &mut *shared.lock().unwrap();
            assert!(in_flight.is_empty() && queue.take_all().is_empty());
        },
        ITERATIONS,
    );
}

/// Submits a write and flushes the batches it is given, each at a random pace.
fn pace(shared: &Mutex<(Queue<u8>, Vec<usize>)>, number: u8, limits: Limits) {
    let take = |queue: &mut Queue<u8>, in_flight: &mut Vec<usize>| {
        let batches = queue.take_all();
        for batch in &batches {
            let (rows, beside) = (batch.ids.len(), in_flight.iter().sum::<usize>());
            let is_large = rows >= beside.min(limits.rows_max);
            assert!(beside <= 1 || is_large, "{rows} rows beside {beside}");
            in_flight.push(rows);
        }
        assert!(in_flight.len() <= limits.in_flight_max);
        batches
    };
    let mut batches = {
        let (queue, in_flight) = &mut *shared.lock().unwrap();
        queue.push(Id([number; 32]), 1, number);
        take(queue, in_flight)
    };
    while let Some(batch) = batches.pop() {
        let sent_at = now();
        thread::yield_now();
        let (queue, in_flight) = &mut *shared.lock().unwrap();
        queue.answered(batch.ids.len(), sent_at, now());
        queue.end(&batch.ids);
        let place = in_flight.iter().position(|rows| *rows == batch.ids.len()).unwrap();
        in_flight.remove(place);
        batches.extend(take(queue, in_flight));
    }
}

/// Each answer is its own row's: rows from 900 on are bad.
fn judged(row: u32) -> Result<u32, Error> {
    match row {
        0..900 => Ok(row),
        _ => Err(Error::new(ErrorKind::Other, format!("row {row} is bad"))),
    }
}

/// E07
#[test]
fn one_bad_row_fails_alone() {
    shuttle::check_random(
        || {
            let batcher = Batcher::new(LIMITS, async |rows: Vec<u32>| rows.into_iter().map(judged).collect());
            let callers = [1, 2, 999, 3].map(|row: u32| {
                let batcher = batcher.clone();
                let id = Id([u8::try_from(row % 251).unwrap(); 32]);
                thread::spawn(move || future::block_on(batcher.submit(id, 1, row)))
            });
            let answers = callers.map(|caller| caller.join().unwrap());
            assert_eq!(answers.iter().flatten().collect::<Vec<_>>(), [&1, &2, &3]);
            assert_eq!(answers[2].as_ref().unwrap_err().to_string(), "row 999 is bad");
        },
        ITERATIONS,
    );
}

/// X05: whether it was written is not known, and nobody hangs.
#[test]
fn a_flush_that_panics_or_answers_too_few_answers_unavailable_and_the_next_one_goes() {
    #[derive(Clone, Copy, PartialEq)]
    enum Fails {
        AtOnce,
        Later,
        Silent,
    }
    for fails in [Fails::AtOnce, Fails::Later, Fails::Silent] {
        let case = move || {
            let batcher = Batcher::new(LIMITS, move |rows: Vec<u32>| {
                let is_bad = rows[0] == 1;
                assert!(!(is_bad && fails == Fails::AtOnce), "at once");
                async move {
                    yield_now().await;
                    assert!(!(is_bad && fails == Fails::Later), "later");
                    if is_bad { Vec::new() } else { rows.into_iter().map(Ok).collect() }
                }
            });
            future::block_on(async {
                let error = batcher.submit(Id([1; 32]), 1, 1).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert_eq!(batcher.submit(Id([1; 32]), 1, 2).await.unwrap(), 2);
            });
        };
        shuttle::check_random(case, 100);
    }
}

/// The tests above can fail: a queue that never sends what waited is caught.
#[test]
#[should_panic(expected = "deadlock")]
fn a_lost_wake_up_would_be_caught() {
    shuttle::check_random(
        || {
            let queue = Arc::new(Mutex::new(Queue::new(Limits { in_flight_max: 1, ..LIMITS })));
            let callers: Vec<_> = (0..3_u8)
                .map(|id| {
                    thread::spawn({
                        let queue = queue.clone();
                        move || future::block_on(without_looking_again(&queue, id))
                    })
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
        },
        ITERATIONS,
    );
}

/// Submits and flushes like the batcher, but does not look at the queue after a batch has ended.
async fn without_looking_again(queue: &Mutex<Queue<oneshot::Sender<()>>>, id: u8) {
    let (caller, answer) = oneshot::channel();
    let batches = {
        let mut queue = queue.lock().unwrap();
        queue.push(Id([id; 32]), 1, caller);
        queue.take_all()
    };
    for batch in batches {
        yield_now().await;
        queue.lock().unwrap().end(&batch.ids);
        for caller in batch.loads {
            caller.send(()).unwrap();
        }
    }
    answer.await.unwrap();
}
