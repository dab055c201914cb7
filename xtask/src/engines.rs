//! `cargo xtask engines`: the servers that tests run on, and the browser.

use std::io::Read;

use anyhow::{Result, anyhow, bail};
use onlyonce_testkit::browser;
use onlyonce_testkit::engines::{dynamodb, mariadb, postgres, redis, sqlite};
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;

/// What can be started, as in the URL of a store.
const ENGINES: &str = "postgres, mysql, redis, dynamodb";

pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    let words = arguments.words(2)?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["install"] => install()?,
        ["start"] => start("postgres")?,
        ["start", engine] => start(engine)?,
        _ => bail!("say \"install\", or \"start\" and one of {ENGINES}"),
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

/// Starts a server for a person to look at, prints the URL of a store on it, and ends it at the end of standard input, or when
/// this process ends. Nothing of it stays.
fn start(engine: &str) -> Result<()> {
    let failed = |reason| anyhow!("{reason}");
    match engine {
        "postgres" => {
            let server = postgres::Server::start(&[]).map_err(failed)?;
            show(&server.url("postgres"))
        }
        "mysql" => {
            let server = mariadb::Server::start(&[]).map_err(failed)?;
            show(&server.url(&server.fresh_database()))
        }
        "redis" => {
            let server = redis::Server::start(&[]).map_err(failed)?;
            show(&server.url())
        }
        "dynamodb" => {
            let server = dynamodb::Server::start().map_err(failed)?;
            let url = server.url_of("onlyonce");
            eprintln!("The table is created by: onlyonce migrate --store '{url}'");
            show(&url)
        }
        other => bail!("\"{other}\" cannot be started; say one of {ENGINES}"),
    }
}

/// Shows the URL until standard input ends.
fn show(url: &str) -> Result<()> {
    println!("{url}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
