//! What can befall the parts, by name; `trouble.rs` does it.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Node(OfNode),
    Database(OfDatabase),
    Line(Line, OfLine),
}

/// What befalls a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfNode {
    Killed,
    /// And the others with it.
    AllKilled,
    /// By SIGTERM, as by an operator.
    Terminated,
    /// It stands still for longer than a lease.
    Frozen,
}

/// What befalls PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfDatabase {
    Killed,
    StoppedAtOnce,
    Restarted,
    Frozen,
}

/// A line of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    FromClients,
    ToStore,
    ToService,
}

/// What befalls a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfLine {
    /// What is under way breaks, and nobody gets through for a while.
    Cut,
    /// Nothing gets through in one direction or both; then all of it does.
    Held,
    /// What is asked arrives, what is answered does not, and the connections break.
    AnswersLost,
    Slow,
}

impl OfNode {
    pub(super) const ALL: [Self; 4] = [Self::Killed, Self::AllKilled, Self::Terminated, Self::Frozen];
}

impl OfDatabase {
    pub(super) const ALL: [Self; 4] = [Self::Killed, Self::StoppedAtOnce, Self::Restarted, Self::Frozen];
}

impl Line {
    const ALL: [Self; 3] = [Self::FromClients, Self::ToStore, Self::ToService];
}

impl OfLine {
    pub(super) const ALL: [Self; 4] = [Self::Cut, Self::Held, Self::AnswersLost, Self::Slow];
}

impl Fault {
    /// Every kind, so that one that never fired is missed.
    pub(super) fn all() -> Vec<Self> {
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
