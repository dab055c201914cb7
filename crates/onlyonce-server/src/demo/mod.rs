//! `onlyonce demo`: a payments service, clients that retry, and a ledger outside the layer that counts real charges.

mod acts;
mod bank;
mod client;
mod place;
mod report;
mod service;
mod stage;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onlyonce::store::sqlite::Expired;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::Ended;
use crate::{cli, store};
use bank::Bank;
use place::Place;
use report::Report;
use service::Sample;
use stage::Stage;

/// What the slow card takes in the story, and by hand: long enough to type a second command.
const SLOW: Duration = Duration::from_millis(50);
const SLOW_BY_HAND: Duration = Duration::from_secs(10);
/// What an act that takes milliseconds may take at most.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(arguments: &cli::Demo) -> Result<Ended> {
    let place = Place::new(arguments.store.as_deref())?;
    if !arguments.is_tour() {
        return serve(arguments.listen, &place).await;
    }
    // Ctrl-C ends the story here, so that its folder is removed.
    tokio::select! {
        ended = play(&place, arguments.json) => ended,
        () = interrupted() => bail!("interrupted"),
    }
}

/// Plays the story on a free port.
async fn play(place: &Place, as_json: bool) -> Result<Ended> {
    let mut stage = Stage::set(Arc::new(Bank::new(SLOW)), place.url.clone()).await?;
    let mut report = Report::new(as_json);
    report.begin(place)?;
    let mut all_held = true;
    let restart = place.url.is_durable().then_some(acts::RESTART);
    for play in acts::ALL.into_iter().chain(restart) {
        let act = timeout(PATIENCE, play(&mut stage))
            .await
            .context("an act of the story did not end in time")??;
        all_held &= act.held();
        report.tell(act)?;
    }
    stage.stop().await?;
    report.end(place)?;
    Ok(if all_held { Ended::Yes } else { Ended::No })
}

/// Keeps the sample service listening until Ctrl-C.
async fn serve(listen: SocketAddr, place: &Place) -> Result<Ended> {
    let listener = bind(listen).await?;
    let store = place.url.open(Expired::Delete).await?;
    let sample = Sample::new(Arc::new(Bank::new(SLOW_BY_HAND)), store.clone(), "demo");
    writeln!(io::stdout(), "{}", curl_lines(listener.local_addr()?, place))?;
    let serving = async {
        axum::serve(listener, sample.app()).with_graceful_shutdown(interrupted()).await?;
        writeln!(io::stdout(), "stopping: waits for what is under way; Ctrl-C again does not wait")?;
        sample.onlyonce.engine().idle().await;
        drop(sample);
        store::close(store).await?;
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

fn curl_lines(address: SocketAddr, place: &Place) -> String {
    let records = place.told();
    format!(
        r#"ready: sample service http://{address}, records in {records}

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

Ctrl-C stops it. With --store sqlite:demo.db it remembers: stop it, start it again, and retry. The ledger is
in memory and begins anew."#
    )
}
