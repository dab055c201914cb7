//! The store that a run is on, and what it can do: which kinds of work there are, which faults, and what must have happened.

use std::net::SocketAddr;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use onlyonce_testkit::engines::server::{Engine, Owned, Server};
use onlyonce_testkit::engines::{postgres, redis};

/// As `--store` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Postgres,
    Mysql,
    Redis,
}

/// The database of MariaDB. PostgreSQL and Redis have one from the start.
pub(crate) const DATABASE: &str = "chaos";

impl Store {
    /// Starts its server.
    pub(crate) fn start(self) -> Result<Owned> {
        // Every command stays in the log, with its time: that is read in the end.
        let logged = [("auto-aof-rewrite-percentage", "0"), ("aof-timestamp-enabled", "yes")];
        let server = match self {
            Self::Postgres => Engine::Postgres.start(),
            Self::Mysql => Engine::Mysql.start(),
            Self::Redis => redis::Server::start(&logged).map(Owned::Redis),
        };
        let server = server.map_err(|reason| anyhow!(reason))?;
        if let Server::Mysql(server) = server.server() {
            server.sql("", &format!("CREATE DATABASE {DATABASE}"));
        }
        Ok(server)
    }

    /// The URL of the store, where its server is reached at this address.
    pub(crate) fn url(self, address: SocketAddr) -> String {
        match self {
            Self::Postgres => format!("postgres://postgres@{address}/postgres?sslmode=disable"),
            Self::Mysql => format!("mysql://root@{address}/{DATABASE}?sslmode=disable"),
            Self::Redis => format!("redis://{address}/0"),
        }
    }

    /// Whether services complete their keys by SQL, in transactions of their own, with messages.
    pub(crate) fn has_local_work(self) -> bool {
        match self {
            Self::Postgres => true,
            Self::Mysql | Self::Redis => false,
        }
    }
}

/// The server, where it is one that services have transactions on.
pub(crate) fn of_services(server: Server<'_>) -> Option<&postgres::Server> {
    match server {
        Server::Postgres(server) => Some(server),
        Server::Mysql(_) | Server::Redis(_) | Server::Dynamodb(_) => None,
    }
}
