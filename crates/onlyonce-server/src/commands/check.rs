//! `onlyonce check`: validates the settings and warns about risky ones.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::{Value, json};

use crate::Ended;
use crate::cli::CheckSettings;
use crate::config::{self, Fault, Faults, Loaded, Place, Question, Warning};

pub(crate) fn run(arguments: &CheckSettings) -> Result<Ended> {
    let found = config::load(&arguments.settings.sources());
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", as_json(&found))?;
    } else {
        match &found {
            Ok(loaded) if arguments.print => write!(out, "{}", loaded.effective)?,
            Ok(loaded) => tell(&mut out, &loaded.warnings, &loaded.questions)?,
            Err(faults) => writeln!(out, "{faults}")?,
        }
    }
    Ok(if found.is_ok() { Ended::Yes } else { Ended::No })
}

fn tell(out: &mut impl Write, warnings: &[Warning], questions: &[Question]) -> io::Result<()> {
    match warnings.len() {
        0 => writeln!(out, "ok")?,
        1 => writeln!(out, "ok, with 1 warning")?,
        count => writeln!(out, "ok, with {count} warnings")?,
    }
    warnings.iter().try_for_each(|warning| writeln!(out, "  {warning}"))?;
    questions.iter().try_for_each(|question| writeln!(out, "question: {question}"))
}

fn as_json(found: &Result<Loaded, Faults>) -> Value {
    let one = |path: &str, route: &Option<String>, value: &Option<String>, remedy: &str, place: &Place| json!({ "path": path, "route": route, "value": value, "remedy": remedy, "place": place.to_string() });
    let fault = |fault: &Fault| one(&fault.path, &fault.route, &fault.value, &fault.remedy, &fault.place);
    let warning = |warning: &Warning| {
        one(&warning.path, &warning.route, &warning.value, &warning.remedy, &warning.place)
    };
    let told = |warnings: &[Warning]| warnings.iter().map(warning).collect();
    let (faults, warnings, questions): (Vec<_>, Vec<_>, Vec<_>) = match found {
        Ok(loaded) => (Vec::new(), told(&loaded.warnings), told(&loaded.questions)),
        Err(faults) => (faults.0.iter().map(fault).collect(), Vec::new(), Vec::new()),
    };
    json!({ "ok": found.is_ok(), "faults": faults, "warnings": warnings, "questions": questions })
}
