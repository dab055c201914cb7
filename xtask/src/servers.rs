//! `cargo xtask engines`: the servers that tests run on.

use std::io::Read;

use anyhow::{Result, anyhow};
use onlyonce_testkit::engines::postgres::{self, Server};

use crate::Verdict;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Install what is missing, by Debian's packages; needs root
    Install,
    /// Start a PostgreSQL of your own, print its URL, and stop it at the end of standard input
    Start,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    match arguments.verb {
        Verb::Install => {
            println!("PostgreSQL: {}", postgres::install().map_err(|reason| anyhow!(reason))?.display());
        }
        Verb::Start => {
            let server = Server::start(&[]).map_err(|reason| anyhow!(reason))?;
            println!("{}", server.url("postgres"));
            std::io::stdin().read_to_end(&mut Vec::new())?;
        }
    }
    Ok(Verdict::Yes)
}
