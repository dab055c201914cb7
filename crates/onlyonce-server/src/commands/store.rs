//! `onlyonce store …`: maintenance of an embedded store's file, and the encryption keys of any store.
//!
//! All commands work while another process owns and uses the file.

mod backup;
mod check;
mod keys;

use anyhow::{Result, bail};
use onlyonce::store::sqlite::Guest;

use crate::Ended;
use crate::cli::{Place, Store};
use crate::store::{Kind, Url};

pub(crate) async fn run(verb: Store) -> Result<Ended> {
    match verb {
        Store::Backup(arguments) => backup::run(&arguments).await,
        Store::Check(arguments) => check::run(&arguments).await,
        Store::Keys(arguments) => keys::run(&arguments).await,
    }
}

impl Place {
    fn open(&self) -> Result<Result<Guest, onlyonce::store::Error>> {
        match self.store.parse()? {
            Url::Sqlite(path) => Ok(Guest::open(path)),
            Url::Server(Kind::Postgres, _) => {
                bail!("a PostgreSQL store has no file; back it up with pg_dump")
            }
            #[cfg(feature = "mysql")]
            Url::Server(Kind::Mysql, _) => {
                bail!("a MySQL store has no file of ours; back it up with mariadb-dump or mysqldump")
            }
            #[cfg(feature = "redis")]
            Url::Server(Kind::Redis, _) => {
                bail!("a Redis store has no file of ours; back it up with redis-cli --rdb")
            }
            #[cfg(feature = "dynamodb")]
            Url::Server(Kind::DynamoDb, _) => {
                bail!(
                    "a DynamoDB store has no file; use the backups of DynamoDB, on demand or to a point in time"
                )
            }
            Url::Memory => bail!("store \"memory:\" has no file; name one with --store sqlite:PATH"),
        }
    }
}
