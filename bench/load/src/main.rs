//! The loads wrk cannot make: many requests with one key at the very same time.
//!
//! ```text
//! bench-load storm   ADDRESS[,ADDRESS] BODY_FILE CONNECTIONS DELAY_MS ROUNDS [HEADER …]
//! bench-load waiters ADDRESS BODY_FILE CONNECTIONS DELAY_MS PID    [HEADER …]
//! bench-load upload  ADDRESS BYTES PID [HEADER …]
//! ```
//!
//! `storm` sends one key over every connection at once, to the servers in turn, in so many rounds. `waiters` sends it over one connection
//! first and over the others while that one runs, and reads how much memory the server (`PID`) holds for them.
//! `upload` sends one large body without a key, and reads the same. Each prints one line of JSON. Every read and write
//! has a bound, so a server that never answers ends the load and not the bench.

mod connection;
mod memory;
mod storm;
mod upload;
mod waiters;

use std::io;

use connection::Target;
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (verb, rest) = arguments.split_first().ok_or_else(too_few)?;
    let report = match verb.as_str() {
        "storm" | "waiters" => payments(verb, rest).await?,
        "upload" => {
            let [address, bytes, pid, headers @ ..] = rest else { return Err(too_few()) };
            let address = address.parse().map_err(io::Error::other)?;
            upload::run(address, number(bytes)?, number(pid)?, headers).await?
        }
        other => {
            return Err(io::Error::other(format!("no such load \"{other}\"; use storm, waiters or upload")));
        }
    };
    println!("{report}");
    Ok(())
}

/// Many payments under one key.
async fn payments(verb: &str, arguments: &[String]) -> io::Result<Value> {
    let [address, body_file, connections, delay_ms, last, headers @ ..] = arguments else {
        return Err(too_few());
    };
    let target = Target {
        addresses: address.split(',').map(str::parse).collect::<Result<_, _>>().map_err(io::Error::other)?,
        body: std::fs::read_to_string(body_file)?,
        delay_ms: number(delay_ms)?,
        headers: headers.to_vec(),
    };
    let connections = usize::try_from(number(connections)?).map_err(io::Error::other)?;
    match verb {
        "storm" => storm::run(&target, connections, number(last)?).await,
        _ => waiters::run(&target, connections, number(last)?).await,
    }
}

fn too_few() -> io::Error {
    io::Error::other("too few arguments; see the head of bench/load/src/main.rs")
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| io::Error::other(format!("\"{text}\" is not a number")))
}
