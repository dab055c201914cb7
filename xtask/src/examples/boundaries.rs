//! The story of a service that completes its requests by SQL: it is killed at every step of its transaction, started again,
//! and its client retries. After each step the database is asked for rows and messages.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onlyonce_testkit::engines::postgres::{Owned, Server};
use onlyonce_testkit::http::Answer;
use onlyonce_testkit::process::free_address;

use super::play::{Started, is_fresh, is_replay, pay, start};
use super::service::{Running, Service};

const ORDER: &str = r#"{"amount":7450,"currency":"eur"}"#;
const DATABASE: &str = "postgres";
const DIES_WITHIN: Duration = Duration::from_secs(20);

/// What is on record once the service has died.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing was committed: the retry runs.
    Nothing,
    /// The service did not hear what became of its COMMIT.
    NobodyKnows,
    /// All of it: the client of that attempt has the answer already.
    All,
}

/// The lines of the failure table that are about the application.
const STEPS: [(&str, Left); 7] = [
    ("before BEGIN", Left::Nothing),
    ("after the rows", Left::Nothing),
    ("after the message", Left::Nothing),
    ("after onlyonce_complete", Left::Nothing),
    ("COMMIT sent", Left::NobodyKnows),
    ("after COMMIT", Left::All),
    ("in the middle of the answer", Left::All),
];

pub(super) struct Boundaries<'a> {
    service: &'static Service,
    folder: &'a Path,
    server: Owned,
    address: SocketAddr,
    gateway: Started,
    /// How many payments must have been made by now.
    payments: usize,
    broken: usize,
}

impl<'a> Boundaries<'a> {
    /// Makes the database as the example's README says, and starts the gateway on it.
    pub(super) fn begin(service: &'static Service, program: &Path, folder: &'a Path) -> Result<Self> {
        let server = Server::start(&[]).map_err(anyhow::Error::msg)?;
        server.sql(&std::fs::read_to_string(folder.join("schema.sql"))?);
        let store = format!("{}?schema=onlyonce", server.url(DATABASE));
        output(Command::new(program).args(["migrate", "--store", &store]))?;
        server.sql(&output(
            Command::new(program).args(["migrate", "--store", &store, "--grants", "app=shop"]),
        )?);
        let address = free_address()?;
        let gateway = start(address, program, folder, &store)?;
        Ok(Self { service, folder, server, address, gateway, payments: 0, broken: 0 })
    }

    /// Plays every step, and gives the number of promises that did not hold.
    pub(super) fn run(mut self) -> Result<usize> {
        self.nobody_dies()?;
        for (step, left) in STEPS {
            self.dies(step, left)?;
        }
        Ok(self.broken)
    }

    fn nobody_dies(&mut self) -> Result<()> {
        let _service = self.serve("")?;
        let first = self.pay("nobody")?;
        let retry = self.pay("nobody")?;
        self.payments += 1;
        let is_kept = is_fresh(&first) && is_replay(&retry, &first);
        self.judge("nobody dies: the service answers, and a retry is a replay", is_kept, "nobody", 1)
    }

    fn dies(&mut self, step: &str, left: Left) -> Result<()> {
        let key = step.replace(' ', "-");
        let mut service = self.serve(step)?;
        let lost = self.pay(&key)?;
        if !service.has_died_within(DIES_WITHIN)? {
            bail!("the service did not die {step}; see {}", self.folder.join("service.log").display());
        }
        drop(service);
        let _service = self.serve("")?;
        let retry = self.pay(&key)?;
        let again = self.pay(&key)?;
        self.payments += 1;
        let was_stored = is_fresh(&lost);
        let is_told_unknown = lost.status == 502 && lost.header("idempotency-stored") == Some("false");
        let is_told = match left {
            Left::Nothing => is_told_unknown,
            Left::NobodyKnows => is_told_unknown || was_stored,
            Left::All => was_stored,
        };
        // The truth may have been committed after the client was told that nobody knew it.
        let is_answered = match was_stored {
            true => is_replay(&retry, &lost) && is_replay(&again, &lost),
            false => retry.status == 201 && is_replay(&again, &retry),
        };
        let runs_again = match left {
            Left::Nothing => is_fresh(&retry),
            Left::NobodyKnows => true,
            Left::All => !is_fresh(&retry),
        };
        let attempt = if is_fresh(&retry) { 2 } else { 1 };
        let promise = match left {
            Left::Nothing => "the client is told that it may retry, and the retry runs",
            Left::NobodyKnows => "rolled back or committed, the retry gets one answer",
            Left::All => "the client has the stored answer, and nothing runs again",
        };
        self.judge(&format!("killed {step}: {promise}"), is_told && is_answered && runs_again, &key, attempt)
    }

    fn serve(&self, step: &str) -> Result<Running> {
        let database = self.server.url_of("shop:shop", DATABASE);
        self.service.start_at(self.folder, self.address, &[("DATABASE_URL", &*database), ("DIE_AT", step)])
    }

    fn pay(&self, key: &str) -> Result<Answer> {
        pay(&self.gateway.addresses.gateway, Some(key), ORDER)
    }

    /// Tells one promise, and whether it held: what the client saw, and what is in the database.
    fn judge(&mut self, promise: &str, is_seen: bool, key: &str, attempt: usize) -> Result<()> {
        let count = |sql: &str| self.server.sql(sql).parse::<usize>().with_context(|| sql.to_owned());
        let payments = count("SELECT count(*) FROM shop.payment")?;
        let messages = count("SELECT count(*) FROM onlyonce.onlyonce_messages")?;
        let attempts = count(&format!(
            "SELECT attempt FROM onlyonce.onlyonce_keys WHERE key = '{key}' AND state = 'completed'"
        ))?;
        let is_kept =
            is_seen && payments == self.payments && messages == self.payments && attempts == attempt;
        println!("  {}  {promise}; {payments} payments in all", if is_kept { "ok  " } else { "NO  " });
        if !is_kept {
            self.broken += 1;
            let seen = if is_seen { "as promised" } else { "NOT as promised" };
            println!(
                "        what the client saw is {seen}; {} payments and messages were promised in {attempt} attempts, and \
                 there are {payments} and {messages} in {attempts}",
                self.payments
            );
        }
        Ok(())
    }
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{:?}: {}", command.get_args(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
