//! Clients: each sends fresh keys, some of them twice concurrently, retries what was not answered, and asks for replays of
//! what was.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onlyonce_testkit::engines::server::Engine;
use onlyonce_testkit::random::Random;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::{Answer, pay};

/// Set it to what a failed run printed, to have the same requests again.
const SEED: &str = "ONLYONCE_OUTAGE_SEED";
const CLIENTS: u64 = 24;
/// DynamoDB's emulator serves some hundred calls a second.
const CLIENTS_OF_AN_EMULATOR: u64 = 4;
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(25);
/// Before a client comes back that was told to: sooner than it was told, as clients do.
const PAUSE_TOLD: Duration = Duration::from_millis(150);

/// What one request heard.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) key: String,
    pub(crate) answer: Answer,
}

/// Clients that go on until they are told to stop.
#[derive(Debug)]
pub(crate) struct Load {
    heard: Arc<Mutex<Vec<Heard>>>,
    clients: JoinSet<()>,
    is_over: watch::Sender<bool>,
}

impl Load {
    pub(crate) fn start(to: SocketAddr, engine: Engine) -> Self {
        let count = match engine {
            Engine::Postgres | Engine::Mysql | Engine::Redis => CLIENTS,
            Engine::Dynamodb => CLIENTS_OF_AN_EMULATOR,
        };
        let given = std::env::var(SEED).ok().map(|seed| seed.parse().expect("the seed is a number"));
        let seed: u64 = given.unwrap_or_else(rand::random);
        eprintln!("{SEED}={seed}");
        let (is_over, heard) = (watch::Sender::new(false), Arc::<Mutex<Vec<Heard>>>::default());
        let mut clients = JoinSet::new();
        for number in 0..count {
            let client = Client {
                to,
                number,
                random: Random::new(seed ^ (number << 32)),
                heard: heard.clone(),
                open: Vec::new(),
                done: Vec::new(),
            };
            clients.spawn(client.go_on(is_over.subscribe()));
        }
        Self { heard, clients, is_over }
    }

    /// How many answers are like this so far.
    pub(crate) fn count(&self, is_it: impl Fn(&Answer) -> bool) -> usize {
        locked(&self.heard).iter().filter(|heard| is_it(&heard.answer)).count()
    }

    /// Lets every client finish its last request; everything that was heard.
    pub(crate) async fn stop(mut self) -> Vec<Heard> {
        self.is_over.send_replace(true);
        while let Some(client) = self.clients.join_next().await {
            client.expect("a client does not panic");
        }
        std::mem::take(&mut *locked(&self.heard))
    }
}

fn locked(heard: &Mutex<Vec<Heard>>) -> MutexGuard<'_, Vec<Heard>> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Client {
    to: SocketAddr,
    number: u64,
    random: Random,
    heard: Arc<Mutex<Vec<Heard>>>,
    /// Keys it was told to come back with.
    open: Vec<String>,
    /// Keys whose answer it has.
    done: Vec<String>,
}

impl Client {
    async fn go_on(mut self, is_over: watch::Receiver<bool>) {
        for number in 0.. {
            if *is_over.borrow() {
                return;
            }
            let is_told_to_wait = match self.random.within(0..=9) {
                0..=2 if !self.open.is_empty() => {
                    let key = self.open.swap_remove(self.random.index(self.open.len()));
                    self.ask(key).await
                }
                3..=4 if !self.done.is_empty() => {
                    let key = self.done.swap_remove(self.random.index(self.done.len()));
                    self.ask(key).await
                }
                5 => self.ask_twice(self.fresh(number)).await,
                _ => self.ask(self.fresh(number)).await,
            };
            sleep(if is_told_to_wait { PAUSE_TOLD } else { PAUSE }).await;
        }
    }

    fn fresh(&self, number: u64) -> String {
        format!("load-{}-{number}", self.number)
    }

    async fn ask(&mut self, key: String) -> bool {
        let answer = pay(self.to, &key).await;
        self.hear(key, answer)
    }

    async fn ask_twice(&mut self, key: String) -> bool {
        let (first, second) = tokio::join!(pay(self.to, &key), pay(self.to, &key));
        let waits = self.hear(key.clone(), first);
        self.hear(key, second) || waits
    }

    fn hear(&mut self, key: String, answer: Answer) -> bool {
        let waits = answer.is_to_wait();
        if waits { &mut self.open } else { &mut self.done }.push(key.clone());
        locked(&self.heard).push(Heard { key, answer });
        waits
    }
}
