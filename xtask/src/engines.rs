//! `cargo xtask engines`: the servers that tests run on, and the browser.

use std::io::Read;

use anyhow::{Result, anyhow, bail};
use onlyonce_testkit::browser;
use onlyonce_testkit::engines::postgres::{self, Server};
use onlyonce_testkit::engines::{dynamodb, mariadb, redis, sqlite};
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;

pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    let words = arguments.words(1)?;
    match words.first().map_or("", String::as_str) {
        "install" => install()?,
        "start" => start()?,
        other => bail!("\"{other}\" is neither \"install\" nor \"start\"; say one of them"),
    }
    Ok(Verdict::Yes)
}

/// Installs what is missing, from Debian's packages, which needs root, and from PyPI.
fn install() -> Result<()> {
    sqlite::install().map_err(|reason| anyhow!(reason))?;
    redis::install().map_err(|reason| anyhow!(reason))?;
    dynamodb::install().map_err(|reason| anyhow!(reason))?;
    println!("PostgreSQL: {}", postgres::install().map_err(|reason| anyhow!(reason))?.display());
    println!("MariaDB: {}", mariadb::install().map_err(|reason| anyhow!(reason))?.display());
    println!("Chromium: {}", browser::install().map_err(|reason| anyhow!(reason))?);
    Ok(())
}

/// Starts a PostgreSQL for a person to look at, prints its URL, and stops it at the end of standard input.
fn start() -> Result<()> {
    let server = Server::start(&[]).map_err(|reason| anyhow!(reason))?;
    println!("{}", server.url("postgres"));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
