//! Thousands of duplicates wait on one key: what does each of them cost, and how soon are all of them answered?

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::connection::{Target, read};
use crate::memory::memory_bytes;
use crate::storm::new_key;

/// How long before the end of the work the server's memory is looked at: everyone has arrived, nobody has left.
const LOOK_BEFORE_END: Duration = Duration::from_millis(300);

/// How many connections are opened at once. Beyond the server's backlog the kernel drops them, and each of those is
/// tried again only a second later.
const AT_ONCE: usize = 128;

/// Runs it, and reports the memory of the server before anyone connected, with everyone connected but idle, and with
/// everyone waiting. The second says what a connection alone costs; only the rest is the waiter's.
pub(crate) async fn run(target: &Target, connections: usize, pid: u64) -> io::Result<Value> {
    let before = memory_bytes(pid)?;
    let mut leader = target.connect().await?;
    let mut streams = connect(target, connections).await?;
    let connected = memory_bytes(pid)?;
    let runs_before = target.runs().await?;

    let request = target.payment(&new_key("waiters", 0));
    let end = tokio::time::Instant::now() + Duration::from_millis(target.delay_ms);
    leader.write_all(request.as_bytes()).await?;
    // The leader's head start: whoever comes first runs, and the others are to be the ones that wait.
    tokio::time::sleep(Duration::from_millis(20)).await;
    for stream in &mut streams {
        stream.write_all(request.as_bytes()).await?;
    }
    let everyone_in_time = tokio::time::Instant::now() + LOOK_BEFORE_END < end;
    tokio::time::sleep_until(end - LOOK_BEFORE_END).await;
    let waiting = memory_bytes(pid)?;

    let mut tasks = JoinSet::new();
    tasks.spawn(async move { read(&mut leader).await });
    for mut stream in streams {
        tasks.spawn(async move { read(&mut stream).await });
    }
    let mut statuses: BTreeMap<String, u64> = BTreeMap::new();
    let mut times = Vec::new();
    for answer in tasks.join_all().await {
        let name =
            answer.as_ref().map_or_else(|error| error.kind().to_string(), |answer| answer.status.to_string());
        *statuses.entry(name).or_default() += 1;
        times.extend(answer.ok().filter(|answer| answer.status == 201).map(|answer| answer.at));
    }
    let wake_ms = times
        .iter()
        .min()
        .zip(times.iter().max())
        .map(|(first, last)| (*last - *first).as_secs_f64() * 1000.0);
    Ok(json!({
        "waiters": connections,
        "everyone_in_time": everyone_in_time,
        "runs": target.runs().await? - runs_before,
        "statuses": statuses,
        "memory_before_bytes": before,
        "memory_connected_bytes": connected,
        "memory_waiting_bytes": waiting,
        "wake_ms": wake_ms,
    }))
}

async fn connect(target: &Target, connections: usize) -> io::Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(connections);
    while streams.len() < connections {
        let mut batch = JoinSet::new();
        for _ in 0..AT_ONCE.min(connections - streams.len()) {
            let address = target.address();
            batch.spawn(async move { TcpStream::connect(address).await });
        }
        for stream in batch.join_all().await {
            let stream = stream?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        // Connections are accepted in order, so an answer on a later one means that these have been.
        target.runs().await?;
    }
    Ok(streams)
}
