//! The `store` setting: `memory:`, `sqlite:PATH`, `postgres://…`, and with their features `mysql://…`, `redis://…` and
//! `dynamodb://…`. The `cache` setting: with the feature `redis`, `redis://…`.
//!
//! A value may hold a password, so nothing after `://` is ever shown.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use onlyonce::store::copies::Copies;
#[cfg(feature = "dynamodb")]
use onlyonce::store::dynamodb;
use onlyonce::store::memory::Memory;
#[cfg(feature = "mysql")]
use onlyonce::store::mysql;
use onlyonce::store::postgres::{self, Postgres};
#[cfg(feature = "redis")]
use onlyonce::store::redis;
use onlyonce::store::seal::Keyring;
use onlyonce::store::sqlite::{Expired, Guest, GuestStore, Holder, Options, Sqlite};
use onlyonce::store::{Schema, Store};

use crate::cli::Grants;

/// Schemes of MySQL and MariaDB.
const MYSQL: [&str; 2] = ["mysql", "mariadb"];
/// Schemes of Redis. Its engine says which of them it does not offer.
const REDIS: [&str; 4] = ["redis", "rediss", "redis+cluster", "rediss+cluster"];
const REMEDY: &str = "use sqlite:PATH, such as sqlite:onlyonce.db, postgres://…, mysql://…, redis://…, dynamodb://…, or memory: (lost when the process ends)";
const MEMORY: &str =
    "store \"memory:\" exists only inside its gateway's process; use --admin URL to ask that gateway";
/// How long closing waits for other users of the store.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The name of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Url {
    /// Forgotten when the process ends.
    Memory,
    /// In this file.
    Sqlite(PathBuf),
    /// In this database.
    Server(Kind, Database),
}

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "dynamodb")]
    DynamoDb,
}

/// The URL of a database. It holds a password: only `shown` is printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Database {
    url: String,
    shown: String,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Url {
    /// Whether records survive closing the store.
    pub(crate) fn is_durable(&self) -> bool {
        match self {
            Self::Memory => false,
            Self::Sqlite(_) | Self::Server(..) => true,
        }
    }

    /// Whether only one process uses it at a time, so that attempts found running at open are dead.
    pub(crate) fn has_one_owner(&self) -> bool {
        match self {
            Self::Memory | Self::Sqlite(_) => true,
            Self::Server(..) => false,
        }
    }

    /// Whether a cache may be put in front of it: it is an SQL database.
    pub(crate) fn takes_cache(&self) -> bool {
        match self {
            Self::Memory => false,
            Self::Sqlite(_) | Self::Server(Kind::Postgres, _) => true,
            #[cfg(feature = "mysql")]
            Self::Server(Kind::Mysql, _) => true,
            #[cfg(feature = "redis")]
            Self::Server(Kind::Redis, _) => false,
            #[cfg(feature = "dynamodb")]
            Self::Server(Kind::DynamoDb, _) => false,
        }
    }

    /// Whether a service can complete requests there in its own transaction.
    pub(crate) fn takes_completions(&self) -> bool {
        match self {
            Self::Memory | Self::Sqlite(_) => false,
            Self::Server(Kind::Postgres, _) => true,
            #[cfg(feature = "mysql")]
            Self::Server(Kind::Mysql, _) => true,
            #[cfg(feature = "redis")]
            Self::Server(Kind::Redis, _) => false,
            #[cfg(feature = "dynamodb")]
            Self::Server(Kind::DynamoDb, _) => false,
        }
    }

    /// Whether records can be counted without reading all of them.
    pub(crate) fn counts_records(&self) -> bool {
        match self {
            #[cfg(feature = "dynamodb")]
            Self::Server(Kind::DynamoDb, _) => false,
            Self::Memory | Self::Sqlite(_) | Self::Server(..) => true,
        }
    }

    /// The whole URL with its password: for another process of this program, never to be shown.
    pub(crate) fn whole(&self) -> String {
        match self {
            Self::Memory | Self::Sqlite(_) => self.to_string(),
            Self::Server(_, database) => database.url.clone(),
        }
    }

    /// Opens the store, ready to be used. What is kept in memory is not encrypted.
    pub(crate) async fn open(&self, expired: Expired, keyring: Option<&Keyring>) -> Result<Arc<dyn Store>> {
        let keyring = keyring.cloned();
        Ok(match self {
            Self::Memory => Arc::new(Memory::new()),
            Self::Sqlite(path) => {
                Arc::new(Sqlite::open(path, Options { expired, keyring, ..Options::default() }).await?)
            }
            Self::Server(kind, database) => {
                let store = database.open(*kind, expired, keyring).await?;
                store.prepare().await?;
                store
            }
        })
    }
}

impl Database {
    /// Connects to the server, and changes nothing there.
    async fn open(&self, kind: Kind, expired: Expired, keyring: Option<Keyring>) -> Result<Arc<dyn Store>> {
        Ok(match kind {
            Kind::Postgres => {
                let options = postgres::Options { expired, keyring, ..postgres::Options::default() };
                Arc::new(Postgres::open(&self.url, options).await?)
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql => {
                let options = mysql::Options { expired, keyring, ..mysql::Options::default() };
                Arc::new(mysql::Mysql::open(&self.url, options).await?)
            }
            #[cfg(feature = "redis")]
            Kind::Redis => {
                let options = redis::Options { expired, keyring, ..redis::Options::default() };
                Arc::new(redis::Redis::open(&self.url, options).await?)
            }
            #[cfg(feature = "dynamodb")]
            Kind::DynamoDb => {
                let options = dynamodb::Options { expired, keyring, ..dynamodb::Options::default() };
                Arc::new(dynamodb::DynamoDb::open(&self.url, options).await?)
            }
        })
    }

    /// The current schema, and what preparing the store would apply.
    async fn schema(&self, kind: Kind) -> Result<Schema> {
        Ok(match kind {
            Kind::Postgres => Postgres::open(&self.url, postgres::Options::default()).await?.schema().await?,
            #[cfg(feature = "mysql")]
            Kind::Mysql => mysql::Mysql::open(&self.url, mysql::Options::default()).await?.schema().await?,
            #[cfg(feature = "redis")]
            Kind::Redis => redis::Redis::open(&self.url, redis::Options::default()).await?.schema().await?,
            #[cfg(feature = "dynamodb")]
            Kind::DynamoDb => {
                let options = dynamodb::Options::default();
                dynamodb::DynamoDb::open(&self.url, options).await?.schema().await?
            }
        })
    }
}

impl Url {
    /// Migrates the store to this release's schema. Opening a store does so too, but for a table of DynamoDB, which is only
    /// created here: a mistyped name would be a second set of records.
    pub(crate) async fn migrate(&self) -> Result<()> {
        #[cfg(feature = "dynamodb")]
        if let Self::Server(Kind::DynamoDb, database) = self {
            let store = dynamodb::DynamoDb::open(&database.url, dynamodb::Options::default()).await?;
            return Ok(store.create().await?);
        }
        close(self.open(Expired::Delete, None).await?).await
    }
}

impl Url {
    /// Opens the store to read it and change nothing: a file as a guest, also while a gateway has it, and a database without
    /// migrating it.
    pub(crate) async fn open_for_reading(&self, keyring: Option<&Keyring>) -> Result<Arc<dyn Store>> {
        self.has_schema().await?;
        let keyring = keyring.cloned();
        Ok(match self {
            Self::Memory => bail!(MEMORY),
            Self::Sqlite(path) => Arc::new(GuestStore::open(path, keyring).await?),
            Self::Server(kind, database) => database.open(*kind, Expired::Delete, keyring).await?,
        })
    }

    /// Opens the store to change it, as a node would. It must be there and have this release's schema: a command about one
    /// record creates no store and migrates none.
    pub(crate) async fn open_for_changes(
        &self,
        expired: Expired,
        keyring: Option<&Keyring>,
    ) -> Result<Arc<dyn Store>> {
        self.has_schema().await?;
        self.open(expired, keyring).await
    }

    /// Who has the file; none where nobody has, or where the store is none that one process has.
    pub(crate) fn holder(&self) -> Result<Option<Holder>> {
        match self {
            Self::Sqlite(path) => Ok(Holder::of(path)?),
            Self::Memory | Self::Server(..) => Ok(None),
        }
    }

    /// Refuses a store that is not there, or whose schema is older than this release's.
    async fn has_schema(&self) -> Result<()> {
        match self {
            Self::Memory => bail!(MEMORY),
            Self::Sqlite(path) => drop(Guest::open(path)?),
            Self::Server(..) => {}
        }
        let Some(schema) = self.schema().await? else { return Ok(()) };
        if schema.version == 0 {
            bail!(
                "store {self} has no Onlyonce tables; use the store of a gateway, with its schema if it has one"
            );
        }
        if !schema.pending.is_empty() {
            bail!(
                "store {self} has schema version {}, but this release needs {}; run onlyonce migrate first",
                schema.version,
                schema.latest
            );
        }
        Ok(())
    }

    /// The statements that grant roles what an application and reports need. Nothing is run.
    pub(crate) fn grants(&self, grants: &Grants) -> Result<String> {
        let Grants { app, reports } = grants;
        match self {
            Self::Server(Kind::Postgres, database) => Ok(postgres::grants(&database.url, app, reports)?),
            #[cfg(feature = "mysql")]
            Self::Server(Kind::Mysql, database) => Ok(mysql::grants(&database.url, app, reports)?),
            #[cfg(feature = "redis")]
            Self::Server(Kind::Redis, _) => self.has_no_roles(),
            #[cfg(feature = "dynamodb")]
            Self::Server(Kind::DynamoDb, _) => self.has_no_roles(),
            Self::Memory | Self::Sqlite(_) => self.has_no_roles(),
        }
    }

    fn has_no_roles(&self) -> Result<String> {
        bail!("store {self} has no roles; --grants works only with postgres://… and mysql://…")
    }

    /// The current schema, and what opening the store would apply; `None` if the engine has no schema.
    pub(crate) async fn schema(&self) -> Result<Option<Schema>> {
        Ok(match self {
            Self::Memory => None,
            Self::Sqlite(path) => Some(Guest::schema_at(path).await?),
            Self::Server(kind, database) => Some(database.schema(*kind).await?),
        })
    }
}

/// The name of a cache in front of a store. It holds a password: only `shown` is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache(Database);

impl Cache {
    /// Connects to the cache, and changes nothing there.
    #[cfg(feature = "redis")]
    pub(crate) async fn open(&self, keyring: Option<&Keyring>) -> Result<Arc<dyn Copies>> {
        Ok(Arc::new(redis::Copies::open(&self.0.url, keyring.cloned()).await?))
    }

    #[cfg(not(feature = "redis"))]
    #[allow(clippy::unused_async, reason = "with the feature redis it connects")]
    pub(crate) async fn open(&self, _keyring: Option<&Keyring>) -> Result<Arc<dyn Copies>> {
        bail!("cache {self} is not in this build; build with --features redis, or use a released binary")
    }
}

impl FromStr for Cache {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        if !REDIS.contains(&scheme) {
            bail!("cache \"{}\" is not a Redis; write redis://HOST:PORT, or unset cache", shown(text));
        }
        Ok(Self(Database { url: text.to_owned(), shown: shown_cache(text)? }))
    }
}

#[cfg(feature = "redis")]
fn shown_cache(text: &str) -> Result<String> {
    Ok(redis::Copies::shown(text)?)
}

#[cfg(not(feature = "redis"))]
fn shown_cache(text: &str) -> Result<String> {
    bail!(
        "cache \"{}\" is of a kind that is not in this build; build with --features redis, or use a released binary",
        shown(text)
    )
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}

/// Closes a store once nothing else holds it: its file is free afterwards.
pub(crate) async fn close(mut store: Arc<dyn Store>) -> Result<()> {
    let began = Instant::now();
    // A stopped task drops its reference when it is next polled.
    while Arc::get_mut(&mut store).is_none() {
        if began.elapsed() > CLOSES_WITHIN {
            bail!("the store is still in use {} s after everything was stopped", CLOSES_WITHIN.as_secs());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    // Dropping it joins its threads.
    tokio::task::spawn_blocking(move || drop(store)).await?;
    Ok(())
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = text.split_once(':') else {
            bail!("store \"{text}\" does not say which kind of store it is; {}", suggestion(text));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => bail!("store \"{text}\" has something after the colon; write memory:"),
            "sqlite" => Ok(Self::Sqlite(path(text, rest)?)),
            "postgres" | "postgresql" => {
                let database = Database { url: text.to_owned(), shown: Postgres::shown(text)? };
                Ok(Self::Server(Kind::Postgres, database))
            }
            #[cfg(feature = "mysql")]
            scheme if MYSQL.contains(&scheme) => {
                let database = Database { url: text.to_owned(), shown: mysql::Mysql::shown(text)? };
                Ok(Self::Server(Kind::Mysql, database))
            }
            #[cfg(not(feature = "mysql"))]
            scheme if MYSQL.contains(&scheme) => Err(not_built_in(text, "mysql")),
            #[cfg(feature = "redis")]
            scheme if REDIS.contains(&scheme) => {
                let database = Database { url: text.to_owned(), shown: redis::Redis::shown(text)? };
                Ok(Self::Server(Kind::Redis, database))
            }
            #[cfg(not(feature = "redis"))]
            scheme if REDIS.contains(&scheme) => Err(not_built_in(text, "redis")),
            #[cfg(feature = "dynamodb")]
            "dynamodb" => {
                let database = Database { url: text.to_owned(), shown: dynamodb::DynamoDb::shown(text)? };
                Ok(Self::Server(Kind::DynamoDb, database))
            }
            #[cfg(not(feature = "dynamodb"))]
            "dynamodb" => Err(not_built_in(text, "dynamodb")),
            _ => bail!("store \"{}\" is of an unknown kind; {REMEDY}", shown(text)),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Server(_, database) => f.write_str(&database.shown),
        }
    }
}

#[cfg(not(all(feature = "dynamodb", feature = "mysql", feature = "redis")))]
fn not_built_in(text: &str, feature: &str) -> Error {
    anyhow::anyhow!(
        "store \"{}\" is of a kind that is not in this build; build with --features {feature}, or use a released binary",
        shown(text)
    )
}

/// SQLite's URI syntax is refused rather than guessed at.
fn path(text: &str, path: &str) -> Result<PathBuf> {
    if path.is_empty() {
        bail!("store \"{text}\" names no file; write sqlite:onlyonce.db");
    }
    if path == ":memory:" {
        bail!("store \"{text}\" would be lost at the end; write memory: if you want that");
    }
    if let Some(after) = path.strip_prefix("//") {
        bail!("store \"{text}\" has slashes before its path; write sqlite:{after}");
    }
    if let Some((before, _)) = path.split_once('?') {
        bail!("store \"{text}\" has parameters, but SQLite takes none; write sqlite:{before}");
    }
    Ok(PathBuf::from(path))
}

fn suggestion(text: &str) -> String {
    match text {
        "memory" => "write memory:".to_owned(),
        "" | "sqlite" => REMEDY.to_owned(),
        file => format!("write sqlite:{file} for a file, or memory: (lost when the process ends)"),
    }
}

fn shown(text: &str) -> String {
    text.split_once("://").map_or_else(|| text.to_owned(), |(scheme, _)| format!("{scheme}://…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_store_is_read_and_shown_alike() {
        for (text, url) in [
            ("memory:", Url::Memory),
            ("sqlite:onlyonce.db", Url::Sqlite("onlyonce.db".into())),
            ("sqlite:/var/lib/onlyonce/a b.db", Url::Sqlite("/var/lib/onlyonce/a b.db".into())),
            ("sqlite:../:odd:", Url::Sqlite("../:odd:".into())),
        ] {
            assert_eq!(text.parse::<Url>().unwrap(), url);
            assert_eq!(url.to_string(), text);
        }
    }

    #[test]
    fn a_database_is_shown_without_its_password() {
        let url: Url = "postgres://ann:secret@localhost:5433/pay?schema=keys".parse().unwrap();
        assert_eq!(url.to_string(), "postgres://localhost:5433/pay");
        assert!(!format!("{url:?}").contains("secret"));
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn a_mysql_is_shown_without_its_password() {
        let url: Url = "mysql://ann:secret@localhost:3307/pay".parse().unwrap();
        assert_eq!(url.to_string(), "mysql://localhost:3307/pay");
        assert!(!format!("{url:?}").contains("secret"));
        assert!(!url.has_one_owner() && url.is_durable() && url.takes_completions());
        let error = "mariadb://ann:secret@db".parse::<Url>().unwrap_err().to_string();
        assert!(error.contains("names no database") && !error.contains("secret"), "{error}");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_redis_is_shown_without_its_password_and_refused_by_name_where_it_is_not_offered() {
        let url: Url = "redis://ann:secret@localhost:6400/1?prefix=pay".parse().unwrap();
        assert_eq!(url.to_string(), "redis://localhost:6400/1");
        let url: Url = "rediss://ann:secret@db".parse().unwrap();
        assert_eq!(url.to_string(), "rediss://db:6379/0");
        assert!(!format!("{url:?}").contains("secret"));
        for (text, told) in [
            ("redis+cluster://ann:secret@db", "write rediss+cluster://, or sslmode=disable"),
            ("redis://ann:secret@db", "write rediss://, or sslmode=disable"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_cache_is_a_redis_and_is_shown_without_its_password() {
        let cache: Cache = "redis://ann:secret@localhost:6400/1".parse().unwrap();
        assert_eq!(cache.to_string(), "redis://localhost:6400/1");
        assert!(!format!("{cache:?}").contains("secret"));
        for (text, told) in [
            ("", "is not a Redis; write redis://HOST:PORT"),
            ("memcached://ann:secret@db", "cache \"memcached://…\" is not a Redis"),
            ("redis://ann:secret@db", "or sslmode=disable"),
            ("redis://ann:secret@localhost:x", "cannot be read"),
        ] {
            let error = text.parse::<Cache>().unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn a_cache_is_for_databases() {
        let takes = |text: &str| text.parse::<Url>().unwrap().takes_cache();
        assert!(takes("sqlite:onlyonce.db") && takes("postgres://db/pay?sslmode=disable"));
        assert!(!takes("memory:"));
        #[cfg(feature = "redis")]
        assert!(!takes("redis://localhost"));
    }

    #[cfg(feature = "dynamodb")]
    #[test]
    fn a_dynamodb_is_shown_by_its_table_and_region() {
        let url: Url = "dynamodb://payments?region=eu-west-1&reap=index".parse().unwrap();
        assert_eq!(url.to_string(), "dynamodb://payments?region=eu-west-1");
        assert!(
            !url.has_one_owner() && url.is_durable() && !url.takes_completions() && !url.counts_records()
        );
        let error = "dynamodb://payments?region=eu-west-1&replicas=2".parse::<Url>().unwrap_err().to_string();
        assert!(error.contains("use region, endpoint, reap and connect_timeout"), "{error}");
    }

    #[cfg(not(all(feature = "dynamodb", feature = "mysql", feature = "redis")))]
    #[test]
    fn an_engine_that_is_not_built_in_is_named_with_the_remedy() {
        let told = not_built_in("mysql://ann:secret@db/pay", "mysql").to_string();
        assert_eq!(
            told,
            "store \"mysql://…\" is of a kind that is not in this build; build with --features mysql, or use a released binary"
        );
    }

    #[test]
    fn a_name_that_cannot_be_used_is_told_with_its_remedy() {
        for (text, told) in [
            ("", "use sqlite:PATH"),
            ("memory", "write memory:"),
            ("memory:x", "write memory:"),
            (
                "onlyonce.db",
                "\"onlyonce.db\" does not say which kind of store it is; write sqlite:onlyonce.db",
            ),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "write memory:"),
            ("sqlite://a.db", "write sqlite:a.db"),
            ("sqlite:///a.db", "write sqlite:/a.db"),
            ("sqlite:a.db?mode=ro", "write sqlite:a.db"),
            ("postgres:ann:secret@db/x", "does not begin with postgres://"),
            ("postgres://ann:secret@db:http/x", "cannot be read"),
            ("postgres://ann:secret@db/x?sslmode=prefer", "write sslmode=verify-full"),
            ("mongodb://ann:secret@db/x", "\"mongodb://…\" is of an unknown kind; use sqlite:PATH"),
            ("mongodb://db/x", "mysql://…, redis://…, dynamodb://…, or memory:"),
            ("SQLITE:a.db", "of an unknown kind"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_store_is_closed_once_nobody_holds_it() {
        let store = Url::Memory.open(Expired::Delete, None).await.unwrap();
        let held = store.clone();
        let closing = tokio::spawn(close(store));
        tokio::task::yield_now().await;
        assert!(!closing.is_finished());
        drop(held);
        closing.await.unwrap().unwrap();
    }
}
