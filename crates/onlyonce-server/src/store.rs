//! The `store` setting: `memory:`, `sqlite:PATH`, `postgres://…`.
//!
//! A value may hold a password, so nothing after `://` is ever shown.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use onlyonce::store::memory::Memory;
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::sqlite::{Expired, Guest, GuestStore, Holder, Options, Sqlite};
use onlyonce::store::{Schema, Store};

/// Engines that are planned, by their schemes.
const PLANNED: [&str; 6] = ["mysql", "redis", "rediss", "redis+cluster", "rediss+cluster", "dynamodb"];
const REMEDY: &str =
    "use sqlite:PATH, such as sqlite:onlyonce.db, postgres://…, or memory: for what may be forgotten";
const MEMORY: &str = "store \"memory:\" is in the process of its gateway and nowhere else; use --admin URL to ask that gateway";
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
    Postgres(Database),
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
            Self::Sqlite(_) | Self::Postgres(_) => true,
        }
    }

    /// Whether only one process uses it at a time, so that attempts found running at open are dead.
    pub(crate) fn has_one_owner(&self) -> bool {
        match self {
            Self::Memory | Self::Sqlite(_) => true,
            Self::Postgres(_) => false,
        }
    }

    /// The whole URL with its password: for another process of this program, never to be shown.
    pub(crate) fn whole(&self) -> String {
        match self {
            Self::Memory | Self::Sqlite(_) => self.to_string(),
            Self::Postgres(database) => database.url.clone(),
        }
    }

    /// Opens the store, ready to be used.
    pub(crate) async fn open(&self, expired: Expired) -> Result<Arc<dyn Store>> {
        Ok(match self {
            Self::Memory => Arc::new(Memory::new()),
            Self::Sqlite(path) => {
                Arc::new(Sqlite::open(path, Options { expired, ..Options::default() }).await?)
            }
            Self::Postgres(database) => {
                let options = postgres::Options { expired, ..postgres::Options::default() };
                let store = Postgres::open(&database.url, options).await?;
                store.prepare().await?;
                Arc::new(store)
            }
        })
    }
}

impl Url {
    /// Opens the store to read it and change nothing: a file as a guest, also while a gateway has it, and a database without
    /// migrating it.
    pub(crate) async fn open_for_reading(&self) -> Result<Arc<dyn Store>> {
        self.has_schema().await?;
        Ok(match self {
            Self::Memory => bail!(MEMORY),
            Self::Sqlite(path) => Arc::new(GuestStore::open(path).await?),
            Self::Postgres(database) => {
                Arc::new(Postgres::open(&database.url, postgres::Options::default()).await?)
            }
        })
    }

    /// Opens the store to change it, as a node would. It must be there and have this release's schema: a command about one
    /// record creates no store and migrates none.
    pub(crate) async fn open_for_changes(&self, expired: Expired) -> Result<Arc<dyn Store>> {
        self.has_schema().await?;
        self.open(expired).await
    }

    /// Who has the file; none where nobody has, or where the store is none that one process has.
    pub(crate) fn holder(&self) -> Result<Option<Holder>> {
        match self {
            Self::Sqlite(path) => Ok(Holder::of(path)?),
            Self::Memory | Self::Postgres(_) => Ok(None),
        }
    }

    /// Refuses a store that is not there, or whose schema is older than this release's.
    async fn has_schema(&self) -> Result<()> {
        match self {
            Self::Memory => bail!(MEMORY),
            Self::Sqlite(path) => drop(Guest::open(path)?),
            Self::Postgres(_) => {}
        }
        let Some(schema) = self.schema().await? else { return Ok(()) };
        if schema.version == 0 {
            bail!(
                "store {self} has no records of Onlyonce; name the store of a gateway, with its schema where it has one"
            );
        }
        if !schema.pending.is_empty() {
            bail!(
                "store {self} has schema version {}, and this release's is {}; run onlyonce migrate first",
                schema.version,
                schema.latest
            );
        }
        Ok(())
    }

    /// The current schema, and what opening the store would apply; `None` if the engine has no schema.
    pub(crate) async fn schema(&self) -> Result<Option<Schema>> {
        Ok(match self {
            Self::Memory => None,
            Self::Sqlite(path) => Some(Guest::schema_at(path).await?),
            Self::Postgres(database) => {
                let store = Postgres::open(&database.url, postgres::Options::default()).await?;
                Some(store.schema().await?)
            }
        })
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
            bail!("store \"{text}\" does not say which kind it is; {}", suggestion(text));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => bail!("store \"{text}\" has more than its name; write memory:"),
            "sqlite" => Ok(Self::Sqlite(path(text, rest)?)),
            "postgres" | "postgresql" => {
                Ok(Self::Postgres(Database { url: text.to_owned(), shown: Postgres::shown(text)? }))
            }
            planned if PLANNED.contains(&planned) => {
                bail!(
                    "store \"{}\" is of a kind that is planned and not in this release; {REMEDY}",
                    shown(text)
                )
            }
            _ => bail!("store \"{}\" is of no known kind; {REMEDY}", shown(text)),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(database) => f.write_str(&database.shown),
        }
    }
}

/// SQLite's URI syntax is refused rather than guessed at.
fn path(text: &str, path: &str) -> Result<PathBuf> {
    if path.is_empty() {
        bail!("store \"{text}\" names no file; write sqlite:onlyonce.db");
    }
    if path == ":memory:" {
        bail!("store \"{text}\" would be forgotten; write memory: if that is meant");
    }
    if let Some(after) = path.strip_prefix("//") {
        bail!("store \"{text}\" has slashes in front of its path; write sqlite:{after}");
    }
    if let Some((before, _)) = path.split_once('?') {
        bail!("store \"{text}\" has parameters, and there are none for SQLite; write sqlite:{before}");
    }
    Ok(PathBuf::from(path))
}

fn suggestion(text: &str) -> String {
    match text {
        "memory" => "write memory:".to_owned(),
        "" | "sqlite" => REMEDY.to_owned(),
        file => format!("write sqlite:{file} for a file, or memory: for what may be forgotten"),
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

    #[test]
    fn a_name_that_cannot_be_used_is_told_with_its_remedy() {
        for (text, told) in [
            ("", "use sqlite:PATH"),
            ("memory", "write memory:"),
            ("memory:x", "write memory:"),
            ("onlyonce.db", "\"onlyonce.db\" does not say which kind it is; write sqlite:onlyonce.db"),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "write memory:"),
            ("sqlite://a.db", "write sqlite:a.db"),
            ("sqlite:///a.db", "write sqlite:/a.db"),
            ("sqlite:a.db?mode=ro", "write sqlite:a.db"),
            ("mysql://ann:secret@db/x", "\"mysql://…\" is of a kind that is planned"),
            ("postgres:ann:secret@db/x", "does not begin with postgres://"),
            ("postgres://ann:secret@db:http/x", "cannot be read"),
            ("postgres://ann:secret@db/x?sslmode=prefer", "write sslmode=verify-full"),
            ("dynamodb://records?region=x", "planned and not in this release; use sqlite:PATH"),
            ("mongodb://ann:secret@db/x", "\"mongodb://…\" is of no known kind; use sqlite:PATH"),
            ("SQLITE:a.db", "of no known kind"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_store_is_closed_once_nobody_holds_it() {
        let store = Url::Memory.open(Expired::Delete).await.unwrap();
        let held = store.clone();
        let closing = tokio::spawn(close(store));
        tokio::task::yield_now().await;
        assert!(!closing.is_finished());
        drop(held);
        closing.await.unwrap().unwrap();
    }
}
