//! The story: a client that retries, misuses a key, comes eight times at once, and outlives the gateway. After each act
//! the service itself is asked how often it has charged.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::gateway::{self, Addresses, Flags};
use onlyonce_testkit::http::{self, Answer, Request};
use onlyonce_testkit::process::{End, Process, child_command};

use super::service::Running;

const ORDER: &str = r#"{"amount":7450,"currency":"eur"}"#;
const OTHER_ORDER: &str = r#"{"amount":9900,"currency":"eur"}"#;
/// The service of `examples/probe` charges this, and does not answer.
const LOST_ORDER: &str = r#"{"amount":1200,"then":"die"}"#;
const AT_ONCE: usize = 8;
const SETTLED_WITHIN: Duration = Duration::from_secs(20);
const RETRY_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Play<'a> {
    service: &'a Running,
    program: &'a Path,
    folder: &'a Path,
    store: String,
    gateway: Started,
    /// How often the card must have been charged by now.
    charges: usize,
    broken: usize,
}

/// The gateway as it runs. Dropping it is a SIGKILL.
pub(super) struct Started {
    pub(super) addresses: Addresses,
    _process: Process,
}

impl<'a> Play<'a> {
    /// Starts the gateway in front of the service, on a store that nobody has used.
    pub(super) fn begin(service: &'a Running, program: &'a Path, folder: &'a Path) -> Result<Self> {
        let store = new_store(folder)?;
        std::fs::remove_file(folder.join("gateway.log")).or_else(absent_is_fine)?;
        let store = format!("sqlite:{}", store.display());
        let gateway = start(service.address, program, folder, &store)?;
        Ok(Self { service, program, folder, store, gateway, charges: 0, broken: 0 })
    }

    /// Plays every act, and gives the number of promises that did not hold.
    pub(super) fn run(mut self) -> Result<usize> {
        let key = Some("7f1c09b2-5f0e-4c55");
        let first = self.pay(key, ORDER)?;
        self.charges += 1;
        self.judge("the first call is answered by the service", is_fresh(&first))?;

        let retry = self.pay(key, ORDER)?;
        self.judge("a retry gets the same bytes, marked as a replay", is_replay(&retry, &first))?;

        let other = self.pay(key, OTHER_ORDER)?;
        self.judge("another body under the same key is refused with 422", other.status == 422)?;

        let answers = self.pay_at_once("c3d4e5f6-storm")?;
        self.charges += 1;
        self.judge("eight at once make one charge, and nobody gets another answer", is_one_run(&answers))?;

        let unkeyed = self.pay(None, ORDER)?;
        self.charges += 1;
        let passes = is_fresh(&unkeyed) && unkeyed.body != first.body;
        self.judge("without a key the request passes, and charges again", passes)?;

        if self.service.has_probe() {
            self.lose_an_answer()?;
        }

        self = self.kill_and_restart()?;
        let later = self.pay(key, ORDER)?;
        self.judge(
            "killed with SIGKILL and started again, the gateway still replays",
            is_replay(&later, &first),
        )?;
        Ok(self.broken)
    }

    /// The service dies after it has charged. The probe finds out, and the retry gets the answer.
    fn lose_an_answer(&mut self) -> Result<()> {
        let key = Some("d1e2f3a4-lost");
        let lost = self.pay(key, LOST_ORDER)?;
        self.charges += 1;
        self.judge("a service that dies after charging leaves the outcome unknown", lost.status == 502)?;
        let began = Instant::now();
        let found = loop {
            let retry = self.pay(key, LOST_ORDER)?;
            if retry.status != 409 || began.elapsed() > SETTLED_WITHIN {
                break retry;
            }
            std::thread::sleep(RETRY_EVERY);
        };
        let is_answer = found.status == 201 && is_marked(&found) && !found.body.is_empty();
        self.judge("the probe knows, and the retry gets the answer of the charge", is_answer)
    }

    fn pay(&self, key: Option<&str>, body: &str) -> Result<Answer> {
        pay(&self.gateway.addresses.gateway, key, body)
    }

    fn pay_at_once(&self, key: &str) -> Result<Vec<Answer>> {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| self.pay(Some(key), ORDER))).collect();
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
        })
    }

    fn kill_and_restart(self) -> Result<Self> {
        let Self { service, program, folder, store, gateway, charges, broken } = self;
        drop(gateway);
        let gateway = start(service.address, program, folder, &store)?;
        Ok(Self { service, program, folder, store, gateway, charges, broken })
    }

    /// Tells one promise, and whether it held: what the client saw, and what was really charged.
    fn judge(&mut self, promise: &str, is_seen: bool) -> Result<()> {
        let charges = self.service.charges(self.charges)?;
        let is_kept = is_seen && charges == self.charges;
        println!("  {}  {promise}; charged {charges} in all", if is_kept { "ok  " } else { "NO  " });
        if !is_kept {
            self.broken += 1;
            let seen = if is_seen { "as promised" } else { "NOT as promised" };
            println!("        what the client saw is {seen}; {} charges were promised", self.charges);
        }
        Ok(())
    }
}

pub(super) fn pay(address: &str, key: Option<&str>, body: &str) -> Result<Answer> {
    let mut headers = vec![("Authorization", "Bearer ann"), ("Content-Type", "application/json")];
    headers.extend(key.map(|key| ("Idempotency-Key", key)));
    http::send(address, Request { method: "POST", path: "/payments", headers: &headers, body })
}

fn is_marked(answer: &Answer) -> bool {
    answer.header("idempotent-replayed") == Some("true")
}

pub(super) fn is_fresh(answer: &Answer) -> bool {
    answer.status == 201 && !answer.body.is_empty() && !is_marked(answer)
}

pub(super) fn is_replay(answer: &Answer, first: &Answer) -> bool {
    let is_same = |name| answer.header(name) == first.header(name);
    answer.status == first.status && answer.body == first.body && is_same("content-type") && is_marked(answer)
}

/// One ran. The others were told to come back, or had its answer.
fn is_one_run(answers: &[Answer]) -> bool {
    let ran: Vec<&Answer> = answers.iter().filter(|answer| is_fresh(answer)).collect();
    let [ran] = ran[..] else { return false };
    answers.iter().all(|answer| answer == ran || answer.status == 409 || is_replay(answer, ran))
}

pub(super) fn start(upstream: SocketAddr, program: &Path, folder: &Path, store: &str) -> Result<Started> {
    let log = OpenOptions::new().create(true).append(true).open(folder.join("gateway.log"))?;
    let mut command = child_command(program, End::Kill);
    let config = folder.join("onlyonce.toml");
    Flags { config: Some(&config), upstream, store }.add_to(&mut command);
    let mut process = Process::start("the gateway", command.stderr(log), End::Kill)?;
    let addresses = gateway::ready(&mut process)
        .with_context(|| format!("see {}", folder.join("gateway.log").display()))?;
    Ok(Started { addresses, _process: process })
}

/// A path in a folder that is empty.
pub(super) fn new_store(folder: &Path) -> Result<PathBuf> {
    let stores = folder.join("store");
    std::fs::remove_dir_all(&stores).or_else(absent_is_fine)?;
    std::fs::create_dir(&stores)?;
    Ok(stores.join("onlyonce.db"))
}

fn absent_is_fine(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::NotFound {
        return Ok(());
    }
    bail!(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, is_replayed: bool, body: &str) -> Answer {
        let mark = if is_replayed { "Idempotent-Replayed: true\r\n" } else { "" };
        http::parse(format!("HTTP/1.1 {status} -\r\n{mark}\r\n{body}").as_bytes()).unwrap()
    }

    #[test]
    fn a_storm_is_judged_by_who_ran() {
        let [ran, replayed, refused] =
            [answer(201, false, "a"), answer(201, true, "a"), answer(409, false, "")];
        assert!(is_one_run(&[refused.clone(), ran.clone(), replayed.clone()]));
        assert!(!is_one_run(&[replayed, refused]), "nobody ran");
        assert!(!is_one_run(&[ran.clone(), answer(201, false, "b")]), "two ran");
        assert!(!is_one_run(&[ran, answer(201, true, "b")]), "another answer");
    }

    #[test]
    fn a_replay_has_the_bytes_and_the_mark() {
        let first = answer(201, false, "a");
        assert!(is_replay(&answer(201, true, "a"), &first));
        for other in [answer(201, false, "a"), answer(201, true, "b"), answer(200, true, "a")] {
            assert!(!is_replay(&other, &first), "{other:?}");
        }
    }
}
