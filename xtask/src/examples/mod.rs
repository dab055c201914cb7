//! `cargo xtask examples`: the gateway in front of real services, and real clients in front of it. Each folder of `examples/` is
//! started as its README says, what it needs is installed where it is missing, and a story is played on it over real sockets. Each
//! folder of `clients/` makes its calls.

mod boundaries;
mod clients;
mod play;
pub(crate) mod service;

use std::path::Path;

use anyhow::{Result, bail};
use onlyonce_testkit::gateway;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::Verdict;

use self::boundaries::Boundaries;
use self::clients::{CLIENTS, Client};
use self::play::Play;
use self::service::{SERVICES, Service};
use crate::arguments::Arguments;

/// What is played.
#[derive(Clone, Copy)]
enum Example {
    Service(&'static Service),
    Client(&'static Client),
}

/// With a name, only that one.
pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    let words = arguments.words(1)?;
    play_all(&chosen(words.first().map(String::as_str))?, &gateway::build()?)
}

/// All of them, with this program as the gateway.
pub(crate) fn run_all(program: &Path) -> Result<Verdict> {
    play_all(&chosen(None)?, program)
}

fn play_all(examples: &[Example], program: &Path) -> Result<Verdict> {
    let mut failed = Vec::new();
    for example in examples {
        println!("{}", example.name());
        let played = match example {
            Example::Service(service) => play(service, program),
            Example::Client(client) => client.play(program),
        };
        if let Err(error) = played {
            println!("  NO    {error:#}");
            failed.push(example.name());
        }
    }
    if failed.is_empty() {
        println!("every promise held");
        return Ok(Verdict::Yes);
    }
    println!("failed: {}", failed.join(", "));
    Ok(Verdict::No)
}

impl Example {
    fn name(&self) -> &'static str {
        match self {
            Self::Service(service) => service.name,
            Self::Client(client) => client.name,
        }
    }
}

fn chosen(name: Option<&str>) -> Result<Vec<Example>> {
    let all: Vec<Example> =
        SERVICES.iter().map(Example::Service).chain(CLIENTS.iter().map(Example::Client)).collect();
    let Some(name) = name else { return Ok(all) };
    match all.iter().find(|example| example.name() == name) {
        Some(example) => Ok(vec![*example]),
        None => {
            let names: Vec<_> = all.iter().map(Example::name).collect();
            bail!("no example \"{name}\"; there are {}", names.join(", "))
        }
    }
}

/// The story on one service. An error is something that could not be done; a promise that did not hold is one too.
fn play(service: &'static Service, program: &Path) -> Result<()> {
    let folder = repository::target()?.join("examples").join(service.name);
    service.prepare(&folder)?;
    let broken = if service.completes_by_sql() {
        Boundaries::begin(service, program, &folder)?.run()?
    } else {
        let running = service.start(&folder)?;
        Play::begin(&running, program, &folder)?.run()?
    };
    match broken {
        0 => Ok(()),
        count => bail!("{count} promises did not hold; what was said is in {}", folder.display()),
    }
}
