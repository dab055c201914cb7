//! `onlyonce keys forget`: makes a key as if it had never been used.

use std::io::{self, Write};

use serde_json::Value;

use super::super::target::{Name, Order, Purpose, Target};
use super::super::text::member;
use super::{Failure, audited, closing, named, print_json};
use crate::Ended;
use crate::cli::Forget;

pub(crate) async fn run(arguments: &Forget) -> Result<Ended, Failure> {
    let target = Target::open(&arguments.place, Purpose::of(&arguments.change)).await?;
    let forgotten = forget(&target, arguments).await;
    let (name, answer) = closing(target, forgotten).await?;
    if arguments.place.json {
        return print_json(&answer);
    }
    let state = member(&answer["before"], "state");
    let mut out = io::stdout().lock();
    if arguments.change.dry_run {
        writeln!(out, "would forget {}, which is {state}; nothing was changed", named(&name))?;
    } else {
        writeln!(out, "forgotten: {}, which was {state}{}", named(&name), audited(&answer))?;
    }
    Ok(Ended::Yes)
}

async fn forget(target: &Target, arguments: &Forget) -> Result<(Name, Value), Failure> {
    let name = target.name(&arguments.scope, &arguments.key).await?;
    if !arguments.place.json && !arguments.change.dry_run {
        writeln!(io::stdout(), "forgetting {}: the next request with this key runs the work", named(&name))?;
    }
    let answer = target.forget(&name, &Order::of(&arguments.change)?).await?;
    Ok((name, answer))
}
