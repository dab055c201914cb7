//! The kinds of faults, by name; `inject.rs` injects them.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Node(OfNode),
    Database(OfDatabase),
    Line(Line, OfLine),
}

/// A fault of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfNode {
    Killed,
    /// All gateways at once.
    AllKilled,
    /// By SIGTERM, as by an operator.
    Terminated,
    /// Stopped for longer than a lease, and continued.
    Frozen,
}

/// A fault of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfDatabase {
    Killed,
    StoppedAtOnce,
    Restarted,
    Frozen,
}

/// A connection of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    FromClients,
    ToStore,
    ToService,
}

/// A fault of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfLine {
    /// Open connections break, and new ones are refused for a while.
    Cut,
    /// Nothing passes in one direction or both; then all of it does.
    Held,
    /// Requests arrive, answers do not, and the connections break.
    AnswersLost,
    Slow,
}

impl OfNode {
    pub(crate) const ALL: [Self; 4] = [Self::Killed, Self::AllKilled, Self::Terminated, Self::Frozen];
}

impl OfDatabase {
    pub(crate) const ALL: [Self; 4] = [Self::Killed, Self::StoppedAtOnce, Self::Restarted, Self::Frozen];
}

impl Line {
    const ALL: [Self; 3] = [Self::FromClients, Self::ToStore, Self::ToService];
}

impl OfLine {
    pub(crate) const ALL: [Self; 4] = [Self::Cut, Self::Held, Self::AnswersLost, Self::Slow];
}

impl Fault {
    /// Every kind: a run in which one never fired is void.
    pub(crate) fn all() -> Vec<Self> {
        let lines = Line::ALL.into_iter().flat_map(|line| OfLine::ALL.map(|fault| Self::Line(line, fault)));
        let nodes = OfNode::ALL.map(Self::Node).into_iter();
        nodes.chain(OfDatabase::ALL.map(Self::Database)).chain(lines).collect()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(OfNode::Killed) => f.write_str("a gateway is killed"),
            Self::Node(OfNode::AllKilled) => f.write_str("all gateways are killed"),
            Self::Node(OfNode::Terminated) => f.write_str("a gateway is told to stop"),
            Self::Node(OfNode::Frozen) => f.write_str("a gateway stands still"),
            Self::Database(OfDatabase::Killed) => f.write_str("PostgreSQL is killed"),
            Self::Database(OfDatabase::StoppedAtOnce) => f.write_str("PostgreSQL is stopped at once"),
            Self::Database(OfDatabase::Restarted) => f.write_str("PostgreSQL is restarted"),
            Self::Database(OfDatabase::Frozen) => f.write_str("PostgreSQL stands still"),
            Self::Line(line, fault) => {
                let line = match line {
                    Line::FromClients => "from clients to a gateway",
                    Line::ToStore => "from a gateway to PostgreSQL",
                    Line::ToService => "from a gateway to the service",
                };
                let fault = match fault {
                    OfLine::Cut => "cut off",
                    OfLine::Held => "held",
                    OfLine::AnswersLost => "answers lost",
                    OfLine::Slow => "slow",
                };
                write!(f, "{fault} {line}")
            }
        }
    }
}
