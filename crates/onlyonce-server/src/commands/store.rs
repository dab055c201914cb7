//! `onlyonce store …`: maintenance of an embedded store's file.
//!
//! Both commands work while another process owns and uses the file.

mod backup;
mod check;

use anyhow::{Result, bail};
use onlyonce::store::sqlite::Guest;

use crate::Ended;
use crate::cli::{Place, Store};
use crate::store::Url;

pub(crate) async fn run(verb: Store) -> Result<Ended> {
    match verb {
        Store::Backup(arguments) => backup::run(&arguments).await,
        Store::Check(arguments) => check::run(&arguments).await,
    }
}

impl Place {
    fn open(&self) -> Result<Result<Guest, onlyonce::store::Error>> {
        match self.store.parse()? {
            Url::Sqlite(path) => Ok(Guest::open(path)),
            Url::Postgres(_) => bail!("a PostgreSQL store has no file; back it up with pg_dump"),
            Url::Memory => bail!("store \"memory:\" has no file; name one with --store sqlite:PATH"),
        }
    }
}
