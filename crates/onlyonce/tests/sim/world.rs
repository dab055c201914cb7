//! One seed: nodes, clients, downstream and those who break them, from the first request to the last answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::bank::Bank;
use crate::client::Client;
use crate::history::{History, check};
use crate::node::Node;
use crate::operator;
use crate::stage::{Faults, PAUSE_MS, Stage};
use crate::tally::{Count, Tally};
use crate::truth::Truth;

const NODES: usize = 3;
/// Once the faults have stopped, everybody is served within this: latecomers, a deadline, the
/// horizon, and some patience.
const SERVED_WITHIN: Duration = Duration::from_secs(180);
/// A lease, and a few rounds of the sweeper.
const SWEPT_AFTER: Duration = Duration::from_secs(20);

/// What a seed came to.
pub(crate) struct Report {
    pub(crate) histories: Vec<History>,
    pub(crate) tally: Tally,
    pub(crate) violations: Vec<String>,
}

/// The nodes that live, by number.
#[derive(Clone, Default)]
pub(crate) struct Nodes(Arc<Mutex<BTreeMap<usize, Arc<Node>>>>);

impl Nodes {
    pub(crate) fn pick(&self, stage: &Stage) -> Option<Arc<Node>> {
        let nodes: Vec<_> = self.0.lock().unwrap().values().cloned().collect();
        if nodes.is_empty() {
            return None;
        }
        let last = nodes.len() as u64 - 1;
        Some(nodes[usize::try_from(stage.random().within(0..=last)).unwrap()].clone())
    }

    fn all(&self) -> Vec<Arc<Node>> {
        self.0.lock().unwrap().values().cloned().collect()
    }
}

/// Plays one seed on a runtime of its own, whose clock stands still until everybody waits.
pub(crate) fn play(seed: u64, faults: Faults) -> Report {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(seed, faults))
}

async fn run(seed: u64, faults: Faults) -> Report {
    let stage = Stage::new(seed, faults);
    let truth = Truth::new(stage.clone());
    let bank = Bank::new(stage.clone(), truth.clone());
    let nodes = Nodes::default();
    for number in 0..NODES {
        nodes.0.lock().unwrap().insert(number, Node::start(&stage, &truth, &bank));
    }
    let mut others = JoinSet::new();
    others.spawn(operator::operate(bank.clone()));
    let trouble_lasts = stage.random().millis(12_000..=45_000);
    let mut clients = clients(&stage, &nodes, trouble_lasts);
    // Everybody else plays on while trouble is made.
    match faults {
        Faults::All => drop(timeout(trouble_lasts, make_trouble(&stage, &truth, &bank, &nodes)).await),
        Faults::OnlyRepeats => sleep(trouble_lasts).await,
    }
    heal(&stage, &truth, &bank, &nodes);
    let mut violations = Vec::new();
    if timeout(SERVED_WITHIN, async { while clients.join_next().await.is_some() {} }).await.is_err() {
        violations.push(format!("{} clients were never served", clients.len()));
    }
    // Nobody asks any more: what is left is the sweepers'.
    sleep(SWEPT_AFTER).await;
    for node in nodes.all() {
        if !node.life.works(SWEPT_AFTER) {
            violations.push("a sweeper or a reaper has stopped for ever".to_owned());
        }
        if timeout(SERVED_WITHIN, node.engine.idle()).await.is_err() {
            violations.push("an engine is never idle".to_owned());
        }
    }
    if stage.has_spun() {
        violations.push("somebody asks the store without end and without a pause".to_owned());
    }
    let (histories, tally) = stage.histories();
    for (subject, history) in stage.subjects.iter().zip(&histories) {
        let found = check(history).into_iter();
        violations.extend(found.map(|violation| format!("{}/{} {violation}", subject.caller, subject.key)));
    }
    Report { histories, tally, violations }
}

fn clients(stage: &Arc<Stage>, nodes: &Nodes, within: Duration) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let last = u64::try_from(within.as_millis()).unwrap();
    for subject in &stage.subjects {
        for _ in 0..stage.random().within(2..=4) {
            let client = client(stage, nodes, subject.number, last);
            clients.spawn(client.run());
        }
    }
    clients
}

fn client(stage: &Arc<Stage>, nodes: &Nodes, subject: usize, last: u64) -> Client {
    let random = stage.random();
    // Half of them meet at the beginning, where the race for the key is; some come when a keyed downstream has forgotten.
    let starts_after =
        random.weighed(&[(50, (0, 300)), (35, (0, last)), (15, (last.max(50_000), last + 60_000))]);
    Client {
        stage: stage.clone(),
        nodes: nodes.clone(),
        subject: stage.subjects[subject].clone(),
        body: if random.percent(15) { 2 } else { 1 },
        starts_after: random.millis(starts_after.0..=starts_after.1),
        encores: random.within(0..=2),
        gives_up: random.percent(25),
    }
}

/// Crashes, pauses and cuts off nodes, for ever.
async fn make_trouble(stage: &Arc<Stage>, truth: &Truth, bank: &Arc<Bank>, nodes: &Nodes) {
    for number in NODES.. {
        stage.pass(400..=4_000).await;
        let all = nodes.all();
        let Some(node) = nodes.pick(stage) else { continue };
        match stage.random().within(0..=2) {
            0 => {
                stage.count(Count::Partition);
                node.life.cut_off(stage.random().millis(300..=8_000));
            }
            // The horizon covers one pause, not two in a row.
            1 if !node.life.is_paused() => {
                stage.count(Count::Pause);
                node.life.pause(stage.random().millis(PAUSE_MS));
            }
            _ => {
                stage.count(Count::Crash);
                node.crash();
                nodes.0.lock().unwrap().retain(|_, other| !Arc::ptr_eq(other, &node));
                if all.len() == 1 {
                    stage.pass(0..=3_000).await;
                }
                nodes.0.lock().unwrap().insert(number, Node::start(stage, truth, bank));
            }
        }
    }
}

fn heal(stage: &Arc<Stage>, truth: &Truth, bank: &Arc<Bank>, nodes: &Nodes) {
    stage.heal();
    nodes.all().iter().for_each(|node| node.life.heal());
    if nodes.all().is_empty() {
        nodes.0.lock().unwrap().insert(usize::MAX, Node::start(stage, truth, bank));
    }
}
