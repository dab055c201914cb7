//! Those who break things: a lane for each of the parts, each of which does one thing after the other.
//!
//! What a lane does next, to whom and for how long follows from the seed; when it comes to it is up to the machine. Each
//! lane deals its kinds of faults like cards, so that none is left out for long. A lane mends what it has broken before it
//! goes on, and so everything is whole when they have ended.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use onlyonce_testkit::engines::postgres::{Server, Stop};
use onlyonce_testkit::random::Random;
use onlyonce_testkit::wire::{Direction, Wire};

use super::fault::{Fault, Line, OfDatabase, OfLine, OfNode};
use super::node::Node;
use super::stage::Stage;

/// One who breaks things.
struct Lane<'a, F: 'static> {
    stage: &'a Arc<Stage>,
    random: Random,
    kinds: &'static [F],
    deck: Vec<F>,
}

impl<'a, F: Copy + 'static> Lane<'a, F> {
    fn new(stage: &'a Arc<Stage>, name: &str, kinds: &'static [F]) -> Self {
        Self { stage, random: stage.random(name, 0), kinds, deck: Vec::new() }
    }

    /// The next fault, after a pause of so many milliseconds; none once faults have stopped.
    fn next(&mut self, pause: RangeInclusive<u64>, named: impl Fn(F) -> Fault) -> Option<F> {
        thread::sleep(self.random.millis(pause));
        if !self.stage.is_faulty() {
            return None;
        }
        if self.deck.is_empty() {
            self.deck = self.kinds.to_vec();
        }
        let fault = self.deck.swap_remove(self.random.index(self.deck.len()));
        self.stage.tally().fault(named(fault));
        Some(fault)
    }
}

/// Kills, stops and freezes gateways, on the main thread, which starts them.
pub(super) fn nodes(stage: &Arc<Stage>, nodes: &[Node]) -> Result<()> {
    let mut lane = Lane::new(stage, "nodes", &OfNode::ALL);
    while let Some(fault) = lane.next(500..=2_000, Fault::Node) {
        let node = &nodes[lane.random.index(nodes.len())];
        match fault {
            OfNode::Killed => node.kill(),
            OfNode::AllKilled => nodes.iter().for_each(Node::kill),
            OfNode::Terminated => node.terminate()?,
            OfNode::Frozen => node.freeze(lane.random.millis(2_300..=5_000)),
        }
        thread::sleep(lane.random.millis(0..=1_500));
        for node in nodes.iter().filter(|node| !node.is_up()) {
            node.start()?;
        }
    }
    Ok(())
}

/// Kills, stops and freezes the database.
pub(super) fn database(stage: &Arc<Stage>, server: &Server) {
    let mut lane = Lane::new(stage, "database", &OfDatabase::ALL);
    while let Some(fault) = lane.next(3_000..=6_000, Fault::Database) {
        match fault {
            OfDatabase::Killed => server.kill(),
            OfDatabase::StoppedAtOnce => server.stop(Stop::Immediate),
            OfDatabase::Restarted => server.stop(Stop::Fast),
            OfDatabase::Frozen => {
                server.freeze();
                thread::sleep(lane.random.millis(800..=4_000));
                server.thaw();
                continue;
            }
        }
        thread::sleep(lane.random.millis(0..=1_500));
        server.start_again();
    }
}

/// Cuts, holds and slows down one kind of lines, of one gateway after the other.
pub(super) fn lines(stage: &Arc<Stage>, nodes: &[Node], line: Line) {
    let name = match line {
        Line::FromClients => "lines from clients",
        Line::ToStore => "lines to the store",
        Line::ToService => "lines to the service",
    };
    let mut lane = Lane::new(stage, name, &OfLine::ALL);
    while let Some(fault) = lane.next(300..=2_000, |fault| Fault::Line(line, fault)) {
        let wire = nodes[lane.random.index(nodes.len())].line(line);
        trouble(wire, fault, &lane.random);
        wire.mend();
    }
}

fn trouble(wire: &Wire, fault: OfLine, random: &Random) {
    match fault {
        OfLine::Cut => {
            // Taken and dropped, or not taken at all: only of the latter it is certain that nothing was sent.
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

    fn dealt(seed: u64, count: usize) -> Vec<OfNode> {
        let stage = Stage::new(seed);
        let mut lane = Lane::new(&stage, "nodes", &OfNode::ALL);
        (0..count).filter_map(|_| lane.next(0..=0, Fault::Node)).collect()
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
        let stage = Stage::new(7);
        stage.end_faults();
        assert_eq!(Lane::new(&stage, "nodes", &OfNode::ALL).next(0..=0, Fault::Node), None);
        assert_eq!(stage.tally().fired(), 0);
    }
}
