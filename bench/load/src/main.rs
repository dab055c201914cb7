//! The loads wrk cannot make: many requests with one key at the very same time.
//!
//! ```text
//! bench-load storm   ADDRESS BODY_FILE CONNECTIONS DELAY_MS ROUNDS [HEADER …]
//! bench-load waiters ADDRESS BODY_FILE CONNECTIONS DELAY_MS PID    [HEADER …]
//! ```
//!
//! `storm` sends one key over every connection at once, in so many rounds. `waiters` sends it over one connection
//! first and over the others while that one runs, and reads how much memory the server (`PID`) holds for them. Each
//! prints one line of JSON. Every read has a bound, so a server that never answers ends the load and not the bench.

mod connection;
mod storm;
mod waiters;

use std::io;

use connection::Target;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, address, body_file, connections, delay_ms, last, headers @ ..] = arguments.as_slice() else {
        return Err(io::Error::other("too few arguments; see the head of bench/load/src/main.rs"));
    };
    let target = Target {
        address: address.parse().map_err(io::Error::other)?,
        body: std::fs::read_to_string(body_file)?,
        delay_ms: number(delay_ms)?,
        headers: headers.to_vec(),
    };
    let connections = usize::try_from(number(connections)?).map_err(io::Error::other)?;
    let report = match verb.as_str() {
        "storm" => storm::run(&target, connections, number(last)?).await?,
        "waiters" => waiters::run(&target, connections, number(last)?).await?,
        other => return Err(io::Error::other(format!("no such load \"{other}\"; use storm or waiters"))),
    };
    println!("{report}");
    Ok(())
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| io::Error::other(format!("\"{text}\" is no number")))
}
