//! Runs one case: its nodes, its steps, and the checks at its end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use onlyonce_core::dialect::Dialect;
use tokio::task::JoinHandle;

use super::check::{self, Facts};
use super::client::After;
use super::data::{Case, Step, StoreMode, Suite, Until};
use super::logs::Logs;
use super::node::Node;
use super::payload::span;
use super::socket::Socket;
use super::step::{BODY, Heard, Plan, Progress, Words, requests};
use super::store::{Disk, Engine, Faulty, MovedClock};
use super::upstream::{Shared, Upstream};
use super::vectors;

/// Time limit of a case.
const CASE_MAX: Duration = Duration::from_secs(120);
/// Time limit of a wait.
const LOOK_FOR: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How many times each task is polled after the clock has moved; each time also polls the timers.
const TURNS: usize = 200;

/// Runs a case on its own thread and runtime: cases share nothing but the process.
///
/// Another thread watches the time limit, since a case moves the clock of its own runtime.
pub(crate) fn run<N: Node>(case: Case, engine: Engine) -> Result<(), String> {
    let (done, finished) = channel();
    let running = std::thread::spawn(move || {
        let result = run_here::<N>(case, engine);
        // Fails only if the case has timed out already.
        let _ = done.send(());
        result
    });
    match finished.recv_timeout(CASE_MAX) {
        Err(RecvTimeoutError::Timeout) => Err(format!("hangs: not done after {} s", CASE_MAX.as_secs())),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            running.join().unwrap_or_else(|panic| Err(check::panic_text(&*panic)))
        }
    }
}

fn run_here<N: Node>(case: Case, engine: Engine) -> Result<(), String> {
    let logs = Logs::default();
    let _captured = logs.capture();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut world = World::<N>::new(case, engine).await;
        let ran = world.run().await;
        ran.and_then(|()| world.check_logs(&logs.text()))
            .map_err(|error| format!("{error}\n--- log of the case\n{}", logs.text()))
    })
}

/// A running case.
struct World<N> {
    case: Case,
    words: Words,
    upstream: Shared,
    clock: MovedClock,
    disk: Arc<Disk>,
    nodes: Vec<Running<N>>,
    /// U's socket, if it is behind one.
    socket: Option<Socket>,
    /// The answers of each step, by its name or number.
    heard: HashMap<String, Vec<Heard>>,
    background: HashMap<String, (JoinHandle<Vec<Heard>>, Arc<Progress>)>,
    /// Text that must be in no log and no error.
    secrets: Vec<String>,
}

/// A node and its state.
struct Running<N> {
    node: N,
    store: Arc<Faulty>,
    is_stopping: bool,
}

impl<N: Node> World<N> {
    async fn new(case: Case, engine: Engine) -> Self {
        let (clock, upstream) = (MovedClock::new(), Shared::new(Upstream::default()));
        let disk = Disk::new(N::store(engine), clock.clone()).await;
        let socket = match N::SUITE {
            Suite::Layer => None,
            Suite::Gateway => Some(Socket::open(&upstream).await.expect("loopback has a free port")),
        };
        let address = socket.as_ref().map(|socket| socket.address);
        let mut nodes = Vec::new();
        for _ in 0..case.nodes {
            let store = Faulty::new(disk.clone());
            let node = N::start(&case, store.clone(), &upstream, address).await;
            nodes.push(Running { node, store, is_stopping: false });
        }
        let words = Words::of(&case.id, |credential, subject| N::token(&case, credential, subject));
        let mut secrets = vec!["credential-".to_owned(), BODY.to_owned()];
        secrets.extend(words.tokens().map(str::to_owned));
        let (heard, background) = (HashMap::new(), HashMap::new());
        Self { case, words, upstream, clock, disk, nodes, socket, heard, background, secrets }
    }

    async fn run(&mut self) -> Result<(), String> {
        let steps = self.case.steps.clone();
        for (at, step) in steps.iter().enumerate() {
            let name = step.name.clone().unwrap_or_else(|| (at + 1).to_string());
            let what = step.send.as_deref().unwrap_or("something else");
            let ran = self.step(step, &name).await;
            ran.map_err(|error| format!("step {} ({what}): {error}", at + 1))?;
        }
        if self.case.steps.iter().any(|step| step.expect.is_some() || step.vectors.is_some()) {
            return Ok(());
        }
        Err("it expects nothing, so it proves nothing".to_owned())
    }

    async fn step(&mut self, step: &Step, name: &str) -> Result<(), String> {
        self.around(step).await?;
        if let Some(vectors) = &step.vectors {
            return vectors::run(vectors, self.nodes[0].node.address(), &self.upstream).await;
        }
        let before = (self.upstream.exec(), self.disk.records().await.len());
        let heard = match (&step.join, step.send.is_some() || step.raw.is_some()) {
            (Some(joined), _) => Some(self.join(joined).await?),
            (None, true) => self.send(step, name).await?,
            (None, false) => None,
        };
        if let Some(heard) = &heard {
            self.heard.insert(step.join.clone().unwrap_or_else(|| name.to_owned()), heard.clone());
        }
        let is_quiet = step.join.is_none() && self.background.is_empty();
        let facts = self.facts(is_quiet.then_some(before)).await;
        let answers = heard.unwrap_or_default();
        match &step.expect {
            Some(expect) => check::step(expect, &answers, &facts),
            None => Ok(()),
        }
    }

    /// What a step does besides sending.
    async fn around(&mut self, step: &Step) -> Result<(), String> {
        if let Some(by) = &step.advance {
            self.settle().await;
            self.clock.advance(span(by));
            self.jump(span(by)).await;
        }
        if let Some(by) = &step.advance_node {
            self.settle().await;
            self.jump(span(by)).await;
        }
        if let Some(mode) = step.store {
            self.order_store(mode, step.node).await;
        }
        if let Some(gate) = &step.open {
            self.upstream.open(gate);
        }
        if step.reap {
            self.disk.store().reap(usize::MAX).await.map_err(|error| error.to_string())?;
        }
        if step.stop {
            let running = self.running(step);
            running.node.stop();
            running.is_stopping = true;
        }
        match &step.until {
            Some(until) => self.look_until(until, step).await,
            None => Ok(()),
        }
    }

    async fn order_store(&self, mode: StoreMode, node: Option<usize>) {
        for (at, own) in self.nodes.iter().enumerate() {
            if node.is_none_or(|node| node == at) {
                own.store.set(mode).await;
            }
        }
    }

    fn running(&mut self, step: &Step) -> &mut Running<N> {
        &mut self.nodes[step.node.unwrap_or(0)]
    }

    async fn send(&mut self, step: &Step, name: &str) -> Result<Option<Vec<Heard>>, String> {
        if step.upstream.needs_a_wire() && self.socket.is_none() {
            return Err("only a service behind a socket can obey this order".to_owned());
        }
        self.upstream.order(name, step.upstream.clone());
        let progress = Arc::new(Progress::default());
        let requests = requests(step, name, &self.words);
        let fresh = self.words.keys();
        self.secrets.extend(requests.iter().flat_map(|request| check::keys_of(request, &fresh)));
        let expects_error = step.expect.as_ref().is_some_and(check::expects_an_error);
        let plan = Plan {
            address: self.running(step).node.address(),
            requests,
            step: step.clone(),
            upstream: self.upstream.clone(),
            progress: progress.clone(),
            // If U is unreachable, no second request can be served.
            tries_after: expects_error && !step.background && !step.parallel && !step.upstream.unreachable,
        };
        if step.background {
            let running = tokio::spawn(plan.carry_out());
            self.background.insert(name.to_owned(), (running, progress));
            return Ok(None);
        }
        let heard = self.carry_out(plan).await?;
        let is_broken =
            |heard: &Heard| heard.as_ref().is_ok_and(|answer| answer.after == Some(After::Broken));
        if heard.iter().any(is_broken) {
            return Err("after the error the connection is neither reusable nor closed".to_owned());
        }
        Ok(Some(heard))
    }

    /// With U unreachable, if the step says so.
    async fn carry_out(&mut self, plan: Plan) -> Result<Vec<Heard>, String> {
        let Some(socket) = self.socket.as_mut().filter(|_| plan.step.upstream.unreachable) else {
            return Ok(plan.carry_out().await);
        };
        let reserved = socket.close().await.map_err(|error| error.to_string())?;
        let heard = plan.carry_out().await;
        socket.reopen(reserved).map_err(|error| error.to_string())?;
        Ok(heard)
    }

    async fn join(&mut self, name: &str) -> Result<Vec<Heard>, String> {
        let (running, _) = self.background.remove(name).ok_or(format!("nothing named {name:?} runs"))?;
        let heard = running.await.map_err(|error| error.to_string())?;
        for running in self.nodes.iter_mut().filter(|running| running.is_stopping) {
            running.node.stopped().await;
            running.is_stopping = false;
        }
        Ok(heard)
    }

    /// Waits by polling.
    async fn look_until(&self, until: &Until, step: &Step) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let Some(missing) = self.missing(until, step).await else { return Ok(()) };
            if started.elapsed() > LOOK_FOR {
                return Err(format!("waited in vain: {missing}"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn missing(&self, until: &Until, step: &Step) -> Option<String> {
        let facts = self.facts(None).await;
        let count = |count: fn(&Progress) -> usize| match &until.of {
            Some(of) => count(&self.background[of].1),
            None => self.background.values().map(|(_, progress)| count(progress)).sum(),
        };
        let sent = count(|progress| progress.sent.load(Ordering::Acquire));
        let answered = count(|progress| progress.answered.load(Ordering::Acquire));
        let calls = self.nodes[step.node.unwrap_or(0)].store.calls.load(Ordering::Acquire);
        let wants = [
            ("exec", until.exec, facts.exec),
            ("sent", until.sent, sent),
            ("answered", until.answered, answered),
            ("store calls", until.store_calls, calls),
        ];
        let short = wants.iter().find(|(_, wanted, is)| wanted.is_some_and(|wanted| *is < wanted));
        if let Some((what, wanted, is)) = short {
            return Some(format!("{what}: {is} of {}", wanted.unwrap_or_default()));
        }
        let states = until.states.as_ref().filter(|states| **states != facts.states);
        states.map(|states| format!("states {:?}, not {states:?}", facts.states))
    }

    async fn facts(&self, before: Option<(usize, usize)>) -> Facts<'_> {
        let records = self.disk.records().await;
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for seen in &records {
            *states.entry(seen.record.state.name().as_str().to_owned()).or_default() += 1;
        }
        Facts {
            exec: self.upstream.exec(),
            exec_before: before.map(|before| before.0),
            records: records.len(),
            records_before: before.map(|before| before.1),
            states,
            dump: format!("{records:?}"),
            store_calls: self.nodes.iter().map(|node| node.store.calls.load(Ordering::Acquire)).sum(),
            received: self.upstream.received(),
            heard: &self.heard,
            secrets: &self.secrets,
            clock: &self.clock,
            dialect: self.dialect(),
        }
    }

    fn dialect(&self) -> Dialect {
        let name = self.case.setup.get("dialect").and_then(|name| name.as_str()).unwrap_or("ietf");
        Dialect::named(name).unwrap_or_else(|| panic!("there is no dialect {name:?}"))
    }

    /// K09: no log names a key, a credential or a body.
    fn check_logs(&self, logs: &str) -> Result<(), String> {
        let elsewhere: String = self.nodes.iter().map(|running| running.node.logs()).collect();
        let names = |secret: &str| logs.contains(secret) || elsewhere.contains(secret);
        match self.secrets.iter().find(|secret| names(secret)) {
            Some(secret) => Err(format!("the log names {secret:?}")),
            None => Ok(()),
        }
    }

    /// Advances the runtime's clock by a span, and returns in real time once everything that has become due is done: steps of
    /// a case happen one after the other.
    async fn jump(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
        self.settle().await;
    }

    /// Waits until every task has been polled and no engine call is in flight.
    async fn settle(&self) {
        let started = Instant::now();
        loop {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            if !self.disk.is_busy() || started.elapsed() > LOOK_FOR {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
