//! The kinds of faults, by name; `inject.rs` injects them.

use std::fmt;

use crate::store::Store;

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

/// A fault of the server with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfDatabase {
    Killed,
    Restarted,
    Frozen,
    /// PostgreSQL alone: without waiting for anybody.
    StoppedAtOnce,
    /// Every session of the application is ended.
    SessionsEnded,
}

/// A connection of one gateway, or of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    FromClients,
    ToStore,
    ToService,
    /// From the service, as an application with a database.
    OfService,
    /// From the relays of all gateways.
    ToDestination,
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
    const ALL: [Self; 5] =
        [Self::Killed, Self::Restarted, Self::Frozen, Self::StoppedAtOnce, Self::SessionsEnded];

    pub(crate) fn of(store: Store) -> &'static [Self] {
        match store {
            Store::Postgres => &Self::ALL,
            Store::Mysql | Store::Redis => &Self::ALL[..3],
        }
    }
}

impl Line {
    const ALL: [Self; 5] =
        [Self::FromClients, Self::ToStore, Self::ToService, Self::OfService, Self::ToDestination];

    pub(crate) fn of(store: Store) -> &'static [Self] {
        if store.has_local_work() { &Self::ALL } else { &Self::ALL[..3] }
    }
}

impl OfLine {
    pub(crate) const ALL: [Self; 4] = [Self::Cut, Self::Held, Self::AnswersLost, Self::Slow];
}

impl Fault {
    /// Every kind: a run in which one never fired is void.
    pub(crate) fn of(store: Store) -> Vec<Self> {
        let lines = Line::of(store).iter();
        let lines = lines.flat_map(|line| OfLine::ALL.map(|fault| Self::Line(*line, fault)));
        let nodes = OfNode::ALL.map(Self::Node).into_iter();
        let server = OfDatabase::of(store).iter().copied().map(Self::Database);
        nodes.chain(server).chain(lines).collect()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(OfNode::Killed) => f.write_str("a gateway is killed"),
            Self::Node(OfNode::AllKilled) => f.write_str("all gateways are killed"),
            Self::Node(OfNode::Terminated) => f.write_str("a gateway is told to stop"),
            Self::Node(OfNode::Frozen) => f.write_str("a gateway stands still"),
            Self::Database(OfDatabase::Killed) => f.write_str("the server is killed"),
            Self::Database(OfDatabase::StoppedAtOnce) => f.write_str("the server is stopped at once"),
            Self::Database(OfDatabase::Restarted) => f.write_str("the server is restarted"),
            Self::Database(OfDatabase::Frozen) => f.write_str("the server stands still"),
            Self::Database(OfDatabase::SessionsEnded) => f.write_str("the sessions of the service are ended"),
            Self::Line(line, fault) => {
                let line = match line {
                    Line::FromClients => "from clients to a gateway",
                    Line::ToStore => "from a gateway to the server",
                    Line::ToService => "from a gateway to the service",
                    Line::OfService => "from the service to the server",
                    Line::ToDestination => "from the gateways to the destination",
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
