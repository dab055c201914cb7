//! The findings, for people and for machines.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::super::text::{Colour, clean};
use super::check::{Check, Found, Level, Verdict};
use super::har;
use super::subject::Subject;
use crate::cli::Form;

/// A rule and what became of it.
pub(super) struct Judged {
    pub(super) group: &'static str,
    pub(super) check: Check,
    pub(super) found: Found,
}

pub(super) struct Report<'a> {
    pub(super) subject: &'a Subject,
    pub(super) judged: Vec<Judged>,
}

impl Report<'_> {
    /// How many rules of this level ended so.
    pub(super) fn count(&self, level: Option<Level>, verdict: Verdict) -> usize {
        let is_meant = |judged: &&Judged| {
            judged.found.verdict == verdict && level.is_none_or(|level| judged.check.level == level)
        };
        self.judged.iter().filter(is_meant).count()
    }

    pub(super) fn write(&self, out: &mut impl Write, form: Form) -> io::Result<()> {
        match form {
            Form::Text => self.write_text(out),
            Form::Json => writeln!(out, "{:#}", self.json()),
            Form::Junit => self.write_junit(out),
            Form::Markdown => self.write_markdown(out),
        }
    }

    /// Every request and its answer.
    pub(super) fn har(&self) -> Value {
        har::of(self.subject)
    }

    fn json(&self) -> Value {
        let said = self.subject.said();
        let checks = self.judged.iter().map(|Judged { group, check, found }| {
            json!({
                "id": check.id,
                "group": group,
                "level": check.level.as_str(),
                "what": check.what,
                "verdict": found.verdict.as_str(),
                "why": found.why,
            })
        });
        json!({
            "url": self.subject.url.to_string(),
            "profile": self.subject.dialect.name,
            "checks": checks.collect::<Vec<_>>(),
            "held": self.count(None, Verdict::Held),
            "broken": self.count(None, Verdict::Broken),
            "broken_must": self.count(Some(Level::Must), Verdict::Broken),
            "cannot_tell": self.count(None, Verdict::CannotTell),
            "writes": said.writes,
            "keys": said.keys,
        })
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let colour = Colour::of_stdout();
        let mut group = "";
        for judged in &self.judged {
            if judged.group != group {
                group = judged.group;
                writeln!(out, "{}", colour.bold(group))?;
            }
            let Judged { check, found, .. } = judged;
            let shown = match found.verdict {
                Verdict::Held => colour.level("ok", "held       "),
                Verdict::Broken if check.level == Level::Must => colour.level("fail", "BROKEN     "),
                Verdict::Broken => colour.level("warn", "broken     "),
                Verdict::CannotTell => "cannot tell".to_owned(),
            };
            writeln!(out, "  {shown}  {:<6}  {:<22}  {}", check.level.as_str(), check.id, check.what)?;
            if found.verdict != Verdict::Held {
                writeln!(out, "{:45}{}", "", clean(&found.why))?;
            }
        }
        let said = self.subject.said();
        writeln!(
            out,
            "\n{} held, {} broken ({} of them a \"must\"), {} that cannot be told; {} requests under keys that begin with conform-{}-",
            self.count(None, Verdict::Held),
            self.count(None, Verdict::Broken),
            self.count(Some(Level::Must), Verdict::Broken),
            self.count(None, Verdict::CannotTell),
            said.writes,
            self.subject.run
        )
    }

    fn write_markdown(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "| group | rule | level | verdict | why |\n|---|---|---|---|---|")?;
        for Judged { group, check, found } in &self.judged {
            let cells = [check.what, &found.why].map(|text| clean(text).replace('|', "\\|"));
            let [what, why] = cells;
            writeln!(
                out,
                "| {group} | `{}`: {what} | {} | {} | {why} |",
                check.id,
                check.level.as_str(),
                found.verdict.as_str()
            )?;
        }
        Ok(())
    }

    fn write_junit(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"onlyonce conform\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">",
            self.judged.len(),
            self.count(None, Verdict::Broken),
            self.count(None, Verdict::CannotTell)
        )?;
        for Judged { group, check, found } in &self.judged {
            let name = xml(&format!("{}: {}", check.id, check.what));
            let (level, why) = (check.level.as_str(), xml(&found.why));
            let inside = match found.verdict {
                Verdict::Held => String::new(),
                Verdict::Broken => format!("<failure type=\"{level}\" message=\"{why}\"/>"),
                Verdict::CannotTell => format!("<skipped message=\"{why}\"/>"),
            };
            writeln!(out, "  <testcase classname=\"{group}\" name=\"{name}\">{inside}</testcase>")?;
        }
        writeln!(out, "</testsuite>")
    }
}

/// Text in an attribute. What XML has no place for is left out.
fn xml(text: &str) -> String {
    let text = clean(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
