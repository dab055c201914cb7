//! `onlyonce demo`: a payments service behind the gateway, clients that retry, and a ledger that counts real charges.

mod acts;
mod bank;
mod client;
mod gateway;
mod place;
mod report;
mod service;
mod stage;
mod watch;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::admin::Figures;
use crate::config::{self, Sources};
use crate::node::Node;
use crate::{Ended, cli};
use bank::Bank;
use client::{ASKED, PAYMENTS};
use place::Place;
use report::Report;
use service::Service;
use stage::Stage;
use watch::Watch;

/// How long the slow card takes in the tour, and by hand: long enough to type a second command.
const SLOW: Duration = Duration::from_millis(50);
const SLOW_BY_HAND: Duration = Duration::from_secs(10);
/// The time limit of an act, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(arguments: &cli::Demo) -> Result<Ended> {
    let place = Place::new(arguments.store.as_deref())?;
    if !arguments.tour {
        return serve(arguments, &place).await;
    }
    // Signals are handled here, so that the folder is removed.
    let mut signals = Signals::new()?;
    tokio::select! {
        ended = play(&place, arguments.json) => ended,
        () = signals.stop() => bail!("interrupted"),
    }
}

/// Plays the tour on free ports.
async fn play(place: &Place, as_json: bool) -> Result<Ended> {
    let mut stage = Stage::set(Arc::new(Bank::new(SLOW)), place.url.clone()).await?;
    let mut report = Report::new(as_json);
    report.begin(place)?;
    let mut all_held = true;
    let killed = acts::KILLED.into_iter().filter(|_| place.url.is_durable());
    for play in acts::ALL.into_iter().chain(killed) {
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

/// Runs the gateway and the sample service in this process until it is stopped.
async fn serve(arguments: &cli::Demo, place: &Place) -> Result<Ended> {
    // Before anything listens, so that no signal and no decision is lost.
    let mut signals = Signals::new()?;
    let decided = watch::listen()?;
    let bank = Arc::new(Bank::new(SLOW_BY_HAND));
    let service = Service::start(bank.clone(), arguments.service).await?;
    let flags = [
        ("--upstream", "upstream", format!("http://{}", service.address)),
        ("--listen", "listen", arguments.listen.to_string()),
        ("--admin", "admin", arguments.admin.to_string()),
        ("--store", "store", place.url.whole()),
    ];
    let secret = (gateway::BANK_SECRET.to_owned(), format!("secret-{}", place::unique()));
    let sets = ["service=demo", "policy.required=true"].map(str::to_owned).into_iter();
    let sets = sets.chain(gateway::settling(service.address)).collect();
    let sources = Sources { file: None, environment: vec![secret], sets, flags: flags.into() };
    let node = Node::start(config::load(&sources)?.config, Figures::install()?).await?;
    node.operators().show_ledger(move || service::last_charges(&bank));
    let watch =
        Watch { engine: node.engine().clone(), operators: node.operators().clone(), admin: node.admin };
    let mut out = io::stdout();
    writeln!(out, "{}\n{}", node.ready(), what_to_try(&node, &service, place))?;
    out.flush()?;
    tokio::select! {
        () = watch.tell(decided) => {}
        () = signals.stop() => {}
    }
    writeln!(out, "stopping: waits for requests in progress; Ctrl-C again does not wait")?;
    tokio::select! {
        () = node.stop() => {
            writeln!(out, "stopped: no request was in progress any more")?;
            Ok(Ended::Yes)
        }
        () = signals.stop() => {
            writeln!(out, "stopped: requests in progress are lost")?;
            Ok(Ended::No)
        }
    }
}

/// Ctrl-C and SIGTERM: both end the demo in order, and its temporary folder is removed.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn what_to_try(node: &Node, service: &Service, place: &Place) -> String {
    let (gateway, admin, service) = (node.gateway.url(), node.admin, service.address);
    let (records, program) = (place.told(), watch::program());
    let pay = |path: &str, caller: &str, key: &str, order: &str, card: &str, amount: u32| {
        format!(
            r#"  curl -i {gateway}{path} -H 'Authorization: Bearer {caller}' -H 'Idempotency-Key: {key}' \
    --json '{{"order":"{order}","card":"{card}","amount":{amount}}}'"#
        )
    };
    let first = pay(PAYMENTS, "ann", "first-1", "A-1", "plain", 1_200);
    let reused = pay(PAYMENTS, "ann", "first-1", "A-1", "plain", 9_900);
    let other = pay(PAYMENTS, "bob", "first-1", "B-1", "plain", 1_200);
    let slow = pay(PAYMENTS, "ann", "slow-1", "A-2", "slow", 1_200);
    let closed = pay(PAYMENTS, "ann", "closed-1", "A-3", "closed", 1_200);
    let lost = pay(PAYMENTS, "ann", "lost-1", "A-4", "crashing", 1_200);
    let asked = pay(ASKED, "ann", "asked-1", "A-5", "crashing", 1_200);
    format!(
        r#"
Open the dashboard:  http://{admin}/
It shows what is stuck, the traffic, and the ledger of the bank: how often cards were really charged.

A payments service listens on http://{service} and knows nothing of keys. The gateway {gateway} is in front of it.
Records are in {records}. Each request below appears here as a line.

1. Pay, then run the same line again: the second answer comes from the record, and the card is not charged again.
{first}

2. The same key with another amount: 422, nothing runs.
{reused}

3. Another caller with the same key: a payment of its own.
{other}

4. A bank that takes 10 s. Press Ctrl-C in the middle and run it again: 409. Add -H 'Prefer: wait=10' to wait for the answer.
{slow}

5. The bank is closed at the first call: 503, nothing was charged. Run it again: the same key pays.
{closed}

6. The card is charged, then the service dies: nobody knows, and a retry is refused. A person settles it, on the page or by a command.
{lost}
  {program} keys list --state unknown --admin http://{admin}

7. The same, but the service can be asked: run it again after three seconds, and the gateway has found out.
{asked}

What became of a key, the ledger, and the metrics:
  curl {gateway}/_onlyonce/keys/first-1 -H 'Authorization: Bearer ann'
  curl http://{service}/ledger
  curl http://{admin}/metrics

{program} demo --tour plays all of it, and kills the gateway too. Ctrl-C stops the demo. With --store sqlite:demo.db it
remembers: stop it, start it again, and retry. The ledger is in memory and starts empty.
"#
    )
}
