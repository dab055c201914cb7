//! `cargo xtask examples`: the gateway before real services. Each folder of `examples/` is started as its README says,
//! what it needs is installed where it is missing, and a story is played on it over real sockets.

mod play;
mod service;

use std::path::Path;

use anyhow::{Result, bail};
use onlyonce_testkit::gateway;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::Verdict;

use self::play::Play;
use self::service::{SERVICES, Service};
use crate::arguments::Arguments;

/// With a name, only that one: fastapi, express, nginx or probe.
pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    let words = arguments.words(1)?;
    play_all(&chosen(words.first().map(String::as_str))?)
}

pub(crate) fn run_all() -> Result<Verdict> {
    play_all(&chosen(None)?)
}

fn play_all(services: &[&'static Service]) -> Result<Verdict> {
    let program = gateway::build()?;
    let mut failed = Vec::new();
    for service in services {
        println!("{}", service.name);
        if let Err(error) = play(service, &program) {
            println!("  NO    {error:#}");
            failed.push(service.name);
        }
    }
    if failed.is_empty() {
        println!("every promise held");
        return Ok(Verdict::Yes);
    }
    println!("failed: {}", failed.join(", "));
    Ok(Verdict::No)
}

fn chosen(name: Option<&str>) -> Result<Vec<&'static Service>> {
    let Some(name) = name else { return Ok(SERVICES.iter().collect()) };
    let names = SERVICES.map(|service| service.name).join(", ");
    match SERVICES.iter().find(|service| service.name == name) {
        Some(service) => Ok(vec![service]),
        None => bail!("no example \"{name}\"; there are {names}"),
    }
}

/// The story on one service. An error is something that could not be done; a promise that did not hold is one too.
fn play(service: &'static Service, program: &Path) -> Result<()> {
    let folder = repository::target()?.join("examples").join(service.name);
    service.prepare(&folder)?;
    let running = service.start(&folder)?;
    let broken = Play::begin(&running, program, &folder)?.run()?;
    match broken {
        0 => Ok(()),
        count => bail!("{count} promises did not hold; what was said is in {}", folder.display()),
    }
}
