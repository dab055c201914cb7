//! Every connection sends one key at once, while its handler takes a while: how often does the work run?

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::connection::{Answer, Target, read};

/// What one round of the storm showed.
struct Round {
    runs: u64,
    answers: Vec<io::Result<Answer>>,
}

/// Runs the storm and reports the worst round and the spread between the first answer that brings the result and
/// the last one. A client cannot see the completion itself; the first answer is the earliest sign of it.
pub(crate) async fn run(target: &Target, connections: usize, rounds: u64) -> io::Result<Value> {
    let mut runs_max = 0;
    let mut spreads_ms = Vec::new();
    let mut statuses: BTreeMap<String, u64> = BTreeMap::new();
    for number in 0..rounds {
        let round = one_round(target, connections, number).await?;
        runs_max = runs_max.max(round.runs);
        spreads_ms.extend(spread_ms(&round.answers));
        for answer in &round.answers {
            let name = answer
                .as_ref()
                .map_or_else(|error| error.kind().to_string(), |answer| answer.status.to_string());
            *statuses.entry(name).or_default() += 1;
        }
    }
    spreads_ms.sort_by(f64::total_cmp);
    Ok(json!({
        "rounds": rounds,
        "connections": connections,
        "delay_ms": target.delay_ms,
        "runs_per_key_max": runs_max,
        "statuses": statuses,
        "spread_ms_median": spreads_ms.get(spreads_ms.len() / 2),
        "spread_ms_max": spreads_ms.last(),
    }))
}

async fn one_round(target: &Target, connections: usize, number: u64) -> io::Result<Round> {
    let mut streams = Vec::with_capacity(connections);
    for number in 0..connections {
        streams.push(target.connect_in_turn(number).await?);
    }
    let runs_before = target.runs().await?;
    let request = target.payment(&new_key("storm", number));
    let mut tasks = JoinSet::new();
    for stream in streams {
        tasks.spawn(send(stream, request.clone()));
    }
    let answers = tasks.join_all().await;
    // Work that began may still be under way where a server answered without waiting for it.
    tokio::time::sleep(Duration::from_millis(target.delay_ms + 50)).await;
    Ok(Round { runs: target.runs().await? - runs_before, answers })
}

/// A key that no earlier round and no earlier process has used.
pub(crate) fn new_key(word: &str, number: u64) -> String {
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{word}-{nanoseconds}-{number}")
}

async fn send(mut stream: TcpStream, request: String) -> io::Result<Answer> {
    stream.write_all(request.as_bytes()).await?;
    read(&mut stream).await
}

/// From the first 201 to the last, where there were at least two.
fn spread_ms(answers: &[io::Result<Answer>]) -> Option<f64> {
    let times: Vec<Instant> =
        answers.iter().flatten().filter(|answer| answer.status == 201).map(|answer| answer.at).collect();
    let (first, last) = (times.iter().min()?, times.iter().max()?);
    (times.len() > 1).then(|| (*last - *first).as_secs_f64() * 1000.0)
}
