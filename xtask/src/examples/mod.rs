//! `cargo xtask examples`: the gateway before real services. Each folder of `examples/` is started as its README says,
//! what it needs is installed where it is missing, and a story is played on it over real sockets.

mod play;
mod service;

use std::path::Path;

use anyhow::{Result, bail};

use self::play::Play;
use self::service::{SERVICES, Service};
use crate::Verdict;
use crate::gateway;
use crate::repository;

#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Only this one: fastapi, express or nginx
    name: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let services = chosen(arguments.name.as_deref())?;
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
