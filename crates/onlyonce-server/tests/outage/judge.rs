//! What must hold once the database works again and all clients have retried.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::client::{Answer, retry};
use crate::gateway::PATIENCE;
use crate::load::Heard;
use crate::world::{STORE_TIMEOUT, World};

/// How much longer than it should an answer may take on a machine that is busy with other things.
const SLACK: Duration = Duration::from_secs(3);
/// So many ask at once for the end of their keys.
const AT_ONCE: usize = 16;

/// What happened, for whoever reads the test's output.
#[derive(Debug, Default)]
struct Tally {
    requests: usize,
    keys: usize,
    unavailable: usize,
    not_stored: usize,
    replays: usize,
    slowest_refusal: Duration,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, keys, unavailable, not_stored, replays, slowest_refusal } = self;
        write!(
            f,
            "{requests} requests with {keys} keys, {unavailable} refused (the slowest after {} ms), {not_stored} answers \
             not stored, {replays} replays",
            slowest_refusal.as_millis()
        )
    }
}

/// X01, X03, X05: every refusal came in time, every key comes to its end, done once, and whoever was answered is answered the same.
pub(crate) async fn judge(world: &mut World, what: &str, heard: Vec<Heard>, unavailable_min: usize) {
    world.gateway.lives();
    let mut tally = Tally { requests: heard.len(), ..Tally::default() };
    let mut bodies: HashMap<String, String> = HashMap::new();
    let mut keys: HashSet<String> = HashSet::new();
    for Heard { key, answer } in heard {
        in_time(&key, &answer);
        tally.unavailable += usize::from(answer.is_unavailable());
        tally.replays += usize::from(answer.is_replay());
        if answer.is_unavailable() {
            tally.slowest_refusal = tally.slowest_refusal.max(answer.took);
            assert!(answer.header("retry-after").is_some(), "{key}: {answer:?}");
        } else if answer.status == 201 {
            tally.not_stored += usize::from(!answer.is_stored());
            let told = bodies.entry(key.clone()).or_insert_with(|| answer.body.clone());
            assert_eq!(*told, answer.body, "{key} was told two things");
        } else {
            assert!(answer.is_to_wait(), "{key}: {answer:?}");
        }
        keys.insert(key);
    }
    tally.keys = keys.len();
    all_end(world, keys, &bodies).await;
    println!("{what}: {tally}, {} effects", world.ledger.total());
    assert!(tally.unavailable >= unavailable_min, "{what} is void: too few were refused: {tally}");
    assert!(tally.replays > 0 && tally.keys > 50, "{what} is void: too little happened: {tally}");
}

/// A refusal within the store's time-out; an outcome after two of them, at the latest.
fn in_time(key: &str, answer: &Answer) {
    let limit = if answer.status == 201 { 2 * STORE_TIMEOUT } else { STORE_TIMEOUT };
    assert!(answer.took < limit + SLACK, "{key} waited too long: {answer:?}");
}

async fn all_end(world: &World, keys: HashSet<String>, told: &HashMap<String, String>) {
    let to = world.gateway.address;
    let mut ends = JoinSet::new();
    let mut keys = keys.into_iter();
    loop {
        while ends.len() < AT_ONCE
            && let Some(key) = keys.next()
        {
            ends.spawn(
                async move { (retry(to, &key, PATIENCE).await, retry(to, &key, PATIENCE).await, key) },
            );
        }
        let Some(ended) = ends.join_next().await else { return };
        let (last, again, key) = ended.expect("a client does not panic");
        assert_eq!(last.status, 201, "{key}: {last:?}");
        assert!(again.is_replay() && again.body == last.body, "{key}: {last:?}, then {again:?}");
        assert!(
            told.get(&key).is_none_or(|told| *told == last.body),
            "{key} was told otherwise before: {last:?}"
        );
        assert_eq!(world.ledger.charges(&key), 1, "{key}: {last:?}");
    }
}
