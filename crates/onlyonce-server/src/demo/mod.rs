//! `onlyonce demo`: a payments service, clients that retry, and a ledger outside the layer that counts real charges.

mod acts;
mod bank;
mod client;
mod report;
mod service;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Ended;
use crate::cli;
use acts::Stage;
use bank::Bank;
use report::Report;
use service::Sample;

/// What the slow card takes in the story, and by hand: long enough to type a second command.
const SLOW: Duration = Duration::from_millis(50);
const SLOW_BY_HAND: Duration = Duration::from_secs(10);
/// What an act that takes milliseconds may take at most.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(arguments: &cli::Demo) -> Result<Ended> {
    if arguments.is_tour() { play(arguments.json).await } else { serve(arguments.listen).await }
}

/// Plays the story on a free port.
async fn play(as_json: bool) -> Result<Ended> {
    let bank = Arc::new(Bank::new(SLOW));
    let sample = Sample::new(bank.clone());
    let (address, serving) = open(&sample).await?;
    let mut report = Report::new(as_json);
    report.begin()?;
    let stage = Stage { address, bank, hang_ups: sample.hang_ups.clone() };
    let mut all_held = true;
    for act in acts::ALL {
        let act =
            timeout(PATIENCE, act(&stage)).await.context("an act of the story did not end in time")??;
        all_held &= act.held();
        report.tell(act)?;
    }
    report.end()?;
    serving.abort();
    sample.onlyonce.engine().idle().await;
    Ok(if all_held { Ended::Yes } else { Ended::No })
}

async fn open(sample: &Sample) -> Result<(SocketAddr, JoinHandle<io::Result<()>>)> {
    let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).await?;
    let address = listener.local_addr()?;
    let app = sample.app();
    Ok((address, tokio::spawn(async move { axum::serve(listener, app).await })))
}

/// Keeps the sample service listening until Ctrl-C.
async fn serve(listen: SocketAddr) -> Result<Ended> {
    let listener = bind(listen).await?;
    let sample = Sample::new(Arc::new(Bank::new(SLOW_BY_HAND)));
    writeln!(io::stdout(), "{}", curl_lines(listener.local_addr()?))?;
    let serving = async {
        axum::serve(listener, sample.app()).with_graceful_shutdown(interrupted()).await?;
        writeln!(io::stdout(), "stopping: waits for what is under way; Ctrl-C again does not wait")?;
        sample.onlyonce.engine().idle().await;
        writeln!(io::stdout(), "stopped: nothing was under way any more")?;
        anyhow::Ok(Ended::Yes)
    };
    let impatience = async {
        interrupted().await;
        interrupted().await;
    };
    tokio::select! {
        ended = serving => ended,
        () = impatience => {
            writeln!(io::stdout(), "stopped: what was under way is lost")?;
            Ok(Ended::No)
        }
    }
}

/// Ctrl-C. Without a signal handler there is no clean end to wait for: the service goes on until it is killed.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => bail!(
            "address \"{address}\" is taken by another process; stop that one, or choose another with --listen \
             127.0.0.1:0"
        ),
        Err(error) => Err(error).with_context(|| format!("cannot listen on \"{address}\"")),
    }
}

fn curl_lines(address: SocketAddr) -> String {
    format!(
        r#"ready: sample service http://{address}, records in memory (forgotten when it stops)

Pay, then run the same line again: the answer comes from the record, the card is not charged.
  curl -i http://{address}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: first-1' \
    --json '{{"order":"A-1","card":"plain","amount":1200}}'

The same key with another amount: 422. As another caller ("Bearer bob"): a payment of bob's own.
  curl -i http://{address}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: first-1' \
    --json '{{"order":"A-1","card":"plain","amount":9900}}'

A bank that takes 10 s. Press Ctrl-C in the middle, run it again, and add -H 'Prefer: wait=10'.
  curl -i http://{address}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: slow-1' \
    --json '{{"order":"A-2","card":"slow","amount":1200}}'

Card "crashing": charged, then the handler panics. Card "closed": the bank turns it away once.
What became of a key, and how often the card was really charged:
  curl http://{address}/_onlyonce/keys/first-1 -H 'Authorization: Bearer ann'
  curl http://{address}/ledger

Ctrl-C stops it."#
    )
}
