//! `onlyonce keys purge`: forgets every record of a scope.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use super::super::target::{Order, Purpose, Target};
use super::super::text::Progress;
use super::{Failure, audited, closing, print_json, short};
use crate::Ended;
use crate::cli::Purge;

pub(crate) async fn run(arguments: &Purge) -> Result<Ended, Failure> {
    let target = Target::open(&arguments.place, Purpose::of(&arguments.change)).await?;
    let purged = purge(&target, arguments).await;
    match closing(target, purged).await? {
        Purged::Declined => {
            writeln!(io::stderr(), "nothing was changed")?;
            Ok(Ended::No)
        }
        Purged::Answer(answer) if arguments.place.json => print_json(&answer),
        Purged::Answer(answer) => print(&answer, arguments.change.dry_run),
    }
}

enum Purged {
    Answer(Value),
    /// Whoever was asked said no.
    Declined,
}

async fn purge(target: &Target, arguments: &Purge) -> Result<Purged, Failure> {
    let scope = target.scope(&arguments.scope).await?;
    let order = Order::of(&arguments.change)?;
    let mut progress = Progress::new();
    progress.tell("counting the records of this scope");
    let planned = target.purge(&scope, &Order { dry_run: true, ..order.clone() }).await?;
    drop(progress);
    if order.dry_run {
        return Ok(Purged::Answer(planned));
    }
    let plan = format!("scope {}: {}", short(&scope), counts(&planned, "to forget"));
    // Asked and told on stderr: stdout has the result.
    writeln!(io::stderr(), "{plan}")?;
    if !arguments.yes && io::stdin().is_terminal() && !agreed()? {
        return Ok(Purged::Declined);
    }
    let mut progress = Progress::new();
    progress.tell("forgetting them");
    Ok(Purged::Answer(target.purge(&scope, &order).await?))
}

fn agreed() -> Result<bool, Failure> {
    write!(io::stderr(), "Forget them for good? Type yes: ")?;
    let mut said = String::new();
    io::stdin().read_line(&mut said)?;
    Ok(said.trim() == "yes")
}

fn print(answer: &Value, is_dry_run: bool) -> Result<Ended, Failure> {
    let mut out = io::stdout().lock();
    if is_dry_run {
        writeln!(out, "{}; nothing was changed", counts(answer, "would be forgotten"))?;
    } else {
        writeln!(out, "{}{}", counts(answer, "forgotten"), audited(answer))?;
    }
    Ok(Ended::Yes)
}

fn counts(answer: &Value, forgotten: &str) -> String {
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let (running, unknown) = (count(&answer["kept"]["running"]), count(&answer["kept"]["unknown"]));
    let records = match count(&answer["forgotten"]) {
        1 => "1 record".to_owned(),
        many => format!("{many} records"),
    };
    if running + unknown == 0 {
        return format!("{records} {forgotten}");
    }
    format!("{records} {forgotten}, kept without --force: {running} running, {unknown} unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_kept_is_told() {
        let answer = |forgotten: u64, running: u64, unknown: u64| json!({ "forgotten": forgotten, "kept": { "running": running, "unknown": unknown } });
        assert_eq!(counts(&answer(1, 0, 0), "forgotten"), "1 record forgotten");
        assert_eq!(
            counts(&answer(50, 1, 2), "forgotten"),
            "50 records forgotten, kept without --force: 1 running, 2 unknown"
        );
    }
}
