//! The fault injectors: one thread for the gateways, one for the database, one for each kind of connection.
//!
//! The seed decides what an injector does next, to which part and for how long; when that happens is up to the machine. An
//! injector draws its kinds of faults without repetition, like cards from a deck, so that none is left out for long. It
//! repairs what it broke before it goes on, so everything works again when the injectors have ended.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use onlyonce_testkit::engines::postgres::Stop;
use onlyonce_testkit::engines::server::Server;
use onlyonce_testkit::random::Random;
use onlyonce_testkit::wire::{Direction, Wire};

use crate::application;
use crate::fault::{Fault, Line, OfDatabase, OfLine, OfNode};
use crate::node::Node;
use crate::run::Run;
use crate::store::of_services;

/// How often the sessions of the application are ended, one shortly after the other: each has only a moment between its first
/// statement and its last.
const SESSIONS_ENDED_TIMES: u32 = 5;

/// Injects one fault after the other.
struct Injector<'a, F: 'static> {
    run: &'a Arc<Run>,
    random: Random,
    kinds: &'static [F],
    deck: Vec<F>,
}

impl<'a, F: Copy + 'static> Injector<'a, F> {
    fn new(run: &'a Arc<Run>, name: &str, kinds: &'static [F]) -> Self {
        Self { run, random: run.random(name, 0), kinds, deck: Vec::new() }
    }

    /// The next fault, after a pause of so many milliseconds; none once faults have stopped.
    fn next(&mut self, pause: RangeInclusive<u64>, named: impl Fn(F) -> Fault) -> Option<F> {
        thread::sleep(self.random.millis(pause));
        if !self.run.is_faulty() {
            return None;
        }
        if self.deck.is_empty() {
            self.deck = self.kinds.to_vec();
        }
        let fault = self.deck.swap_remove(self.random.index(self.deck.len()));
        self.run.tally().fault(named(fault));
        Some(fault)
    }
}

/// Kills, stops and freezes gateways, on the main thread, which starts them.
pub(crate) fn nodes(run: &Arc<Run>, nodes: &[Node]) -> Result<()> {
    let mut injector = Injector::new(run, "nodes", &OfNode::ALL);
    while let Some(fault) = injector.next(500..=2_000, Fault::Node) {
        let node = &nodes[injector.random.index(nodes.len())];
        match fault {
            OfNode::Killed => node.kill(),
            OfNode::AllKilled => nodes.iter().for_each(Node::kill),
            OfNode::Terminated => node.terminate()?,
            OfNode::Frozen => node.freeze(injector.random.millis(2_300..=5_000)),
        }
        thread::sleep(injector.random.millis(0..=1_500));
        for node in nodes.iter().filter(|node| !node.is_up()) {
            node.start()?;
        }
    }
    Ok(())
}

/// Kills, stops and freezes the server.
pub(crate) fn database(run: &Arc<Run>, server: Server<'_>) {
    let mut injector = Injector::new(run, "database", OfDatabase::of(run.store));
    while let Some(fault) = injector.next(3_000..=6_000, Fault::Database) {
        match fault {
            OfDatabase::Killed => server.kill(),
            OfDatabase::Restarted => server.stop(),
            OfDatabase::StoppedAtOnce => {
                of_services(server).expect("it is a fault of PostgreSQL").stop(Stop::Immediate);
            }
            OfDatabase::SessionsEnded => {
                let server = of_services(server).expect("it is a fault of PostgreSQL");
                for _ in 0..SESSIONS_ENDED_TIMES {
                    application::end_sessions(server);
                    thread::sleep(injector.random.millis(50..=300));
                }
                continue;
            }
            OfDatabase::Frozen => {
                server.freeze();
                thread::sleep(injector.random.millis(800..=4_000));
                server.thaw();
                continue;
            }
        }
        thread::sleep(injector.random.millis(0..=1_500));
        server.start_again();
    }
}

/// Cuts, holds and slows down one kind of connection, one after the other of those there are.
pub(crate) fn lines(run: &Arc<Run>, wires: &[&Wire], line: Line) {
    let name = match line {
        Line::FromClients => "lines from clients",
        Line::ToStore => "lines to the store",
        Line::ToService => "lines to the service",
        Line::OfService => "lines of the service",
        Line::ToDestination => "lines to the destination",
    };
    let mut injector = Injector::new(run, name, &OfLine::ALL);
    while let Some(fault) = injector.next(300..=2_000, |fault| Fault::Line(line, fault)) {
        let wire = wires[injector.random.index(wires.len())];
        trouble(wire, fault, &injector.random);
        wire.mend();
    }
}

fn trouble(wire: &Wire, fault: OfLine, random: &Random) {
    match fault {
        OfLine::Cut => {
            // Accepted and closed, or not accepted at all: only in the second case is it certain that nothing was sent.
            match random.percent(50) {
                true => wire.refuse(),
                false => wire.vanish(),
            }
            thread::sleep(random.millis(100..=2_500));
        }
        OfLine::Held => {
            let both = [Direction::ToServer, Direction::ToClient];
            let held = random.pick(&[&both[..1], &both[1..], &both[..]]);
            held.iter().for_each(|direction| wire.hold(*direction));
            thread::sleep(random.millis(300..=4_000));
        }
        OfLine::AnswersLost => {
            wire.hold(Direction::ToClient);
            thread::sleep(random.millis(100..=900));
            wire.cut();
        }
        OfLine::Slow => {
            wire.slow_down(random.millis(10..=250));
            thread::sleep(random.millis(500..=3_000));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    fn dealt(seed: u64, count: usize) -> Vec<OfNode> {
        let run = Run::new(seed, Store::Postgres);
        let mut injector = Injector::new(&run, "nodes", &OfNode::ALL);
        (0..count).filter_map(|_| injector.next(0..=0, Fault::Node)).collect()
    }

    #[test]
    fn faults_follow_from_the_seed_and_each_kind_comes_before_any_comes_again() {
        assert_eq!(dealt(7, 40), dealt(7, 40));
        assert_ne!(dealt(7, 40), dealt(8, 40));
        for round in dealt(7, 40).chunks(OfNode::ALL.len()) {
            assert!(OfNode::ALL.iter().all(|kind| round.contains(kind)), "{round:?}");
        }
    }

    #[test]
    fn nothing_new_is_broken_once_faults_have_stopped() {
        let run = Run::new(7, Store::Postgres);
        run.end_faults();
        assert_eq!(Injector::new(&run, "nodes", &OfNode::ALL).next(0..=0, Fault::Node), None);
        assert_eq!(run.tally().fired(), 0);
    }
}
