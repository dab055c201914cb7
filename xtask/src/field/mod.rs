//! `cargo xtask field`: published idempotency libraries, each in a small service, judged by `onlyonce conform`.
//!
//! Each folder of `examples/field/` is a service with one library at one version, set up as that library's README says. What the
//! tester found is kept in `examples/field/results.json`; `docs/field.md` and the table in README are made from that file
//! (`page.rs`), and `cargo xtask tidy` compares them. Not a part of `cargo xtask test`: it installs many packages.

pub(crate) mod page;
mod subject;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::engines::redis;
use onlyonce_testkit::gateway;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::Verdict;
use serde_json::{Value, json};

use self::subject::{SUBJECTS, Subject};
use crate::arguments::Arguments;

/// With names, only those are tested anew, and the other results stay.
pub(crate) fn run(mut arguments: Arguments) -> Result<Verdict> {
    let program = arguments.value("--program")?.map(PathBuf::from);
    let names = arguments.words(usize::MAX)?;
    if let Some(unknown) = names.iter().find(|name| SUBJECTS.iter().all(|subject| subject.folder != **name)) {
        let mut known: Vec<_> = SUBJECTS.iter().map(|subject| subject.folder).collect();
        known.dedup();
        bail!("no folder \"{unknown}\" in examples/field; there are {}", known.join(", "));
    }
    let program = match program {
        Some(program) => program,
        None => gateway::build()?,
    };
    redis::install().map_err(anyhow::Error::msg)?;
    let root = repository::root();
    let kept = root.join(page::RESULTS);
    let before = kept_results(&kept, !names.is_empty())?;
    let mut results = Vec::new();
    for subject in &SUBJECTS {
        let is_chosen = names.is_empty() || names.iter().any(|name| name == subject.folder);
        let old = before.iter().find(|old| subject.is_of(old));
        results.push(match old {
            Some(old) if !is_chosen => old.clone(),
            _ => tested(subject, &program),
        });
    }
    write_pages(&root, &kept, &results)?;
    Ok(Verdict::Yes)
}

fn kept_results(file: &Path, is_needed: bool) -> Result<Vec<Value>> {
    match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{} is no list", file.display())),
        Err(_) if !is_needed => Ok(Vec::new()),
        Err(error) => bail!("{}: {error}; run `cargo xtask field` without a name first", file.display()),
    }
}

/// What was found. A library that cannot be installed or started is a result too, with the reason.
fn tested(subject: &Subject, program: &Path) -> Value {
    println!("{} ({})", subject.name, subject.settings);
    let found = subject.checks(program);
    let mut result = json!({
        "name": subject.name,
        "version": subject.version,
        "from": subject.from,
        "settings": subject.settings,
        "folder": subject.folder,
    });
    match found {
        Ok(checks) => {
            println!("  {} checks, {} broken", checks.len(), page::broken(&checks, None));
            result["checks"] = Value::Array(checks);
        }
        Err(error) => {
            println!("  NOT TESTED  {error:#}");
            result["untested"] = Value::String(format!("{error:#}"));
        }
    }
    result
}

fn write_pages(root: &Path, kept: &Path, results: &[Value]) -> Result<()> {
    std::fs::write(kept, format!("{:#}\n", Value::Array(results.to_vec())))?;
    std::fs::write(root.join(page::PAGE), page::page(results))?;
    let readme = root.join(page::README);
    let text = std::fs::read_to_string(&readme)?;
    let text = page::with_table(&text, &page::table(results, "docs/field.md"))
        .with_context(|| format!("{} lacks the marks {} and {}", page::README, page::BEGIN, page::END))?;
    Ok(std::fs::write(readme, text)?)
}
