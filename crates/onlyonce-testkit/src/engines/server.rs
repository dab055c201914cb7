//! One handle for every server, for suites that run on each of them.
//!
//! What only one server can do, its own module has.

use std::path::Path;

use super::{dynamodb, mariadb, postgres, redis};

/// An engine whose records are on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    Mysql,
    /// One Redis.
    Redis,
    /// DynamoDB's emulator.
    Dynamodb,
}

/// A running server.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each is the server of the engine of that name")]
pub enum Server<'a> {
    Postgres(&'a postgres::Server),
    Mysql(&'a mariadb::Server),
    Redis(&'a redis::Server),
    Dynamodb(&'a dynamodb::Server),
}

/// A server for one test, gone when it is dropped.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is the server of the engine of that name")]
pub enum Owned {
    Postgres(postgres::Owned),
    Mysql(mariadb::Owned),
    Redis(redis::Owned),
    Dynamodb(dynamodb::Owned),
}

/// Counts values that end in a record of this key and state: see `redis/layout.rs` of the store. Up to the state, a value is text of
/// a fixed width, and the key stands in clear behind it.
const COUNT: &str = "
    local count = 0
    for _, name in ipairs(redis.call('KEYS', ARGV[1])) do
        local value = redis.call('GET', name)
        local is_it = string.sub(value, 65, 65) == ARGV[3] and string.find(value, ARGV[2], 66, true)
        if is_it then count = count + 1 end
    end
    return count";
/// The letters of the states, in their order.
const STATES: [(&str, &str); 5] =
    [("pending", "a"), ("running", "b"), ("completed", "c"), ("retryable", "d"), ("unknown", "e")];

impl Engine {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Postgres, Self::Mysql, Self::Redis, Self::Dynamodb];

    /// Its name, as in the names of its failpoints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Redis => "redis",
            Self::Dynamodb => "dynamodb",
        }
    }

    /// The server of this test run.
    ///
    /// # Panics
    ///
    /// With the reason and the remedy, where there is none to be had.
    pub fn shared(self) -> Server<'static> {
        match self {
            Self::Postgres => Server::Postgres(postgres::Server::shared()),
            Self::Mysql => Server::Mysql(mariadb::Server::shared()),
            Self::Redis => Server::Redis(redis::Server::shared()),
            Self::Dynamodb => Server::Dynamodb(dynamodb::Server::shared()),
        }
    }

    /// A server for one test, with its usual settings.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start(self) -> Result<Owned, String> {
        Ok(match self {
            Self::Postgres => Owned::Postgres(postgres::Server::start(&[])?),
            Self::Mysql => Owned::Mysql(mariadb::Server::start(&[])?),
            Self::Redis => Owned::Redis(redis::Server::start(&[])?),
            Self::Dynamodb => Owned::Dynamodb(dynamodb::Server::start()?),
        })
    }
}

impl Owned {
    /// The server itself.
    pub fn server(&self) -> Server<'_> {
        match self {
            Self::Postgres(server) => Server::Postgres(server),
            Self::Mysql(server) => Server::Mysql(server),
            Self::Redis(server) => Server::Redis(server),
            Self::Dynamodb(server) => Server::Dynamodb(server),
        }
    }
}

impl Server<'_> {
    /// Which engine it is for.
    pub fn engine(self) -> Engine {
        match self {
            Self::Postgres(_) => Engine::Postgres,
            Self::Mysql(_) => Engine::Mysql,
            Self::Redis(_) => Engine::Redis,
            Self::Dynamodb(_) => Engine::Dynamodb,
        }
    }

    /// The port it listens on.
    pub fn port(self) -> u16 {
        match self {
            Self::Postgres(server) => server.port(),
            Self::Mysql(server) => server.port(),
            Self::Redis(server) => server.port(),
            Self::Dynamodb(server) => server.port(),
        }
    }

    /// The file it logs to, from its last start on.
    pub fn log(self) -> std::path::PathBuf {
        let folder: &Path = match self {
            Self::Postgres(server) => server.folder(),
            Self::Mysql(server) => server.folder(),
            Self::Redis(server) => server.folder(),
            Self::Dynamodb(server) => server.folder(),
        };
        folder.join("log")
    }

    /// The URL of a store that nobody else has.
    ///
    /// # Panics
    ///
    /// Where it cannot be created.
    pub fn fresh_store(self) -> String {
        match self {
            Self::Postgres(server) => server.fresh_schema(),
            Self::Mysql(server) => server.url(&server.fresh_database()),
            Self::Redis(server) => server.fresh_prefix(),
            Self::Dynamodb(server) => server.made_table(),
        }
    }

    /// How many records with this key are in this state in the store of this URL, as the server says. On Redis the key may not
    /// be a part of another one.
    ///
    /// # Panics
    ///
    /// Where the server does not say.
    pub fn records(self, store: &str, key: &str, state: &str) -> usize {
        let condition = format!("onlyonce_record WHERE `key` = '{key}' AND state = '{state}'");
        let count = match self {
            Self::Postgres(server) => {
                let condition = condition.replace('`', "");
                server.sql(&format!("SELECT count(*) FROM {}.{condition}", parameter(store, "schema")))
            }
            Self::Mysql(server) => server.sql(database(store), &format!("SELECT count(*) FROM {condition}")),
            Self::Dynamodb(server) => return server.records(store, key, state),
            Self::Redis(server) => {
                let (_, letter) = STATES.iter().find(|(name, _)| *name == state).expect("it is a state");
                let names = format!("{{{}.*}}r*", parameter(store, "prefix"));
                server.command(&["EVAL", COUNT, "0", &names, key, letter])
            }
        };
        count.parse().unwrap_or_else(|_| panic!("no count of records: {count:?}"))
    }

    /// Stops it in order, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// Where it does not stop.
    pub fn stop(self) {
        match self {
            Self::Postgres(server) => server.stop(postgres::Stop::Fast),
            Self::Mysql(server) => server.stop(),
            Self::Redis(server) => server.stop(),
            Self::Dynamodb(server) => server.stop(),
        }
    }

    /// Kills it, as a machine that loses its power does, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// Where it does not end.
    pub fn kill(self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::Mysql(server) => server.kill(),
            Self::Redis(server) => server.kill(),
            Self::Dynamodb(server) => server.kill(),
        }
    }

    /// Starts it again as it was, on the same port, and waits until it answers.
    ///
    /// # Panics
    ///
    /// Where it does not start, with the end of its log.
    pub fn start_again(self) {
        match self {
            Self::Postgres(server) => server.start_again(),
            Self::Mysql(server) => server.start_again(),
            Self::Redis(server) => server.start_again(),
            Self::Dynamodb(server) => server.start_again(),
        }
    }

    /// Lets it stand still: it still takes connections, and answers nobody.
    ///
    /// # Panics
    ///
    /// Where it does not run.
    pub fn freeze(self) {
        match self {
            Self::Postgres(server) => server.freeze(),
            Self::Mysql(server) => server.freeze(),
            Self::Redis(server) => server.freeze(),
            Self::Dynamodb(server) => server.freeze(),
        }
    }

    /// Lets it go on.
    pub fn thaw(self) {
        match self {
            Self::Postgres(server) => server.thaw(),
            Self::Mysql(server) => server.thaw(),
            Self::Redis(server) => server.thaw(),
            Self::Dynamodb(server) => server.thaw(),
        }
    }
}

/// The value of a parameter of a URL, which must have it.
fn parameter<'a>(url: &'a str, name: &str) -> &'a str {
    let parameters = url.split(['?', '&']).filter_map(|part| part.split_once('='));
    let mut found = parameters.filter(|(own, _)| *own == name).map(|(_, value)| value);
    found.next().unwrap_or_else(|| panic!("{url} has no {name}"))
}

/// The database of a URL: its path.
fn database(url: &str) -> &str {
    let path = url.split('?').next().and_then(|url| url.rsplit('/').next());
    path.unwrap_or_else(|| panic!("{url} has no path"))
}
