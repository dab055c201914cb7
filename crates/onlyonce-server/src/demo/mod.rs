//! `onlyonce demo`: a payments service behind the gateway, clients that retry, and a ledger that counts real charges.

mod acts;
mod bank;
mod client;
mod gateway;
mod place;
mod report;
mod service;
mod stage;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::timeout;

use crate::admin::Figures;
use crate::config::{self, Sources};
use crate::node::Node;
use crate::{Ended, cli};
use bank::Bank;
use place::Place;
use report::Report;
use service::Service;
use stage::Stage;

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
    // Ctrl-C is handled here, so that the folder is removed.
    tokio::select! {
        ended = play(&place, arguments.json) => ended,
        () = interrupted() => bail!("interrupted"),
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

/// Runs the gateway and the sample service in this process until Ctrl-C.
async fn serve(arguments: &cli::Demo, place: &Place) -> Result<Ended> {
    let service = Service::start(Arc::new(Bank::new(SLOW_BY_HAND)), arguments.service).await?;
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
    let mut out = io::stdout();
    writeln!(out, "{}\n{}", node.ready(), what_to_try(&node, &service, place))?;
    out.flush()?;
    interrupted().await;
    writeln!(out, "stopping: waits for what is under way; Ctrl-C again does not wait")?;
    tokio::select! {
        () = node.stop() => {
            writeln!(out, "stopped: nothing was under way any more")?;
            Ok(Ended::Yes)
        }
        () = interrupted() => {
            writeln!(out, "stopped: what was under way is lost")?;
            Ok(Ended::No)
        }
    }
}

/// Ctrl-C. Without a signal handler the demo runs until it is killed.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn what_to_try(node: &Node, service: &Service, place: &Place) -> String {
    let (gateway, admin, service) = (node.gateway.url(), node.admin, service.address);
    let records = place.told();
    format!(
        r#"
A payments service listens on http://{service} and knows nothing of keys; the gateway is before it.
Records are in {records}.

Pay, then run the same line again: the answer comes from the record, the card is not charged.
  curl -i {gateway}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: first-1' \
    --json '{{"order":"A-1","card":"plain","amount":1200}}'

The same key with another amount: 422. As another caller ("Bearer bob"): a payment of bob's own.
  curl -i {gateway}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: first-1' \
    --json '{{"order":"A-1","card":"plain","amount":9900}}'

A bank that takes 10 s. Press Ctrl-C in the middle, run it again, and add -H 'Prefer: wait=10'.
  curl -i {gateway}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: slow-1' \
    --json '{{"order":"A-2","card":"slow","amount":1200}}'

A card that is charged, and then the service dies: nobody knows, and a retry is told so. A person settles it.
  curl -i {gateway}/payments -H 'Authorization: Bearer ann' -H 'Idempotency-Key: lost-1' \
    --json '{{"order":"A-3","card":"crashing","amount":1200}}'
  onlyonce keys list --state unknown --admin http://{admin}
  onlyonce keys show SCOPE lost-1 --admin http://{admin}      # says which command settles it

The same at {gateway}/payments/asked, where the service has a probe: retry after a second, and it is settled.
Card "closed": the bank turns it away once.
What became of a key, how often the card was really charged, and what the gateway counted:
  curl {gateway}/_onlyonce/keys/first-1 -H 'Authorization: Bearer ann'
  curl http://{service}/ledger
  curl http://{admin}/metrics

onlyonce demo --tour plays all of it, and kills the gateway too. Ctrl-C stops. With --store sqlite:demo.db it
remembers: stop it, start it again, and retry. The ledger is in memory and begins anew."#
    )
}
