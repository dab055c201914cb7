//! The report of a tour, as text or JSON.

use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::place::Place;

/// What an act showed.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) requests: usize,
    pub(crate) charged: usize,
    pub(crate) charged_expected: usize,
    promises: Vec<Promise>,
    /// How long after the charge the last waiting client got its answer.
    pub(crate) woken_after: Option<Duration>,
}

#[derive(Debug)]
struct Promise {
    text: String,
    held: bool,
}

impl Act {
    pub(crate) fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            requests: 0,
            charged: 0,
            charged_expected: 0,
            promises: Vec::new(),
            woken_after: None,
        }
    }

    pub(crate) fn promise(&mut self, text: impl Into<String>, held: bool) {
        self.promises.push(Promise { text: text.into(), held });
    }

    /// Whether every promise held, above all the number of charges.
    pub(crate) fn held(&self) -> bool {
        self.charged_as_expected() && self.promises.iter().all(|promise| promise.held)
    }

    fn charged_as_expected(&self) -> bool {
        self.charged == self.charged_expected
    }

    fn json(&self) -> Value {
        let promises =
            self.promises.iter().map(|promise| json!({ "promise": promise.text, "held": promise.held }));
        json!({
            "act": self.name,
            "held": self.held(),
            "requests": self.requests,
            "charged": self.charged,
            "charged_expected": self.charged_expected,
            "woken_after_ms": self.woken_after.map(|span| span.as_secs_f64() * 1000.0),
            "promises": promises.collect::<Vec<_>>(),
        })
    }
}

/// Prints each act as it ends, or all at the end as JSON.
#[derive(Debug)]
pub(crate) struct Report {
    as_json: bool,
    style: Style,
    acts: Vec<Act>,
}

impl Report {
    pub(crate) fn new(as_json: bool) -> Self {
        Self { as_json, style: Style::of_stdout(), acts: Vec::new() }
    }

    pub(crate) fn begin(&self, place: &Place) -> io::Result<()> {
        if self.as_json {
            return Ok(());
        }
        let title =
            self.style.strong("Onlyonce: a payments service behind the gateway, and clients that retry");
        writeln!(
            io::stdout(),
            "{title}\nReal requests over real sockets; the ledger is the bank's own.\nRecords in {}.\n",
            place.told()
        )
    }

    pub(crate) fn tell(&mut self, act: Act) -> io::Result<()> {
        self.acts.push(act);
        let number = self.acts.len();
        match self.acts.last() {
            Some(act) if !self.as_json => self.tell_act(number, act),
            Some(_) | None => Ok(()),
        }
    }

    fn tell_act(&self, number: usize, act: &Act) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", self.style.strong(&format!("{number}. {}", act.title)))?;
        for promise in &act.promises {
            writeln!(out, "   {} {}", self.style.mark(promise.held), promise.text)?;
        }
        if let Some(span) = act.woken_after {
            writeln!(out, "       the last had it {:.1} ms after the charge", span.as_secs_f64() * 1000.0)?;
        }
        let charged =
            format!("{}, card charged {}", count(act.requests, "request"), count(act.charged, "time"));
        write!(out, "   {} {}", self.style.mark(act.charged_as_expected()), self.style.strong(&charged))?;
        if !act.charged_as_expected() {
            write!(out, ", expected {}", count(act.charged_expected, "time"))?;
        }
        writeln!(out, "\n")
    }

    pub(crate) fn end(&self, place: &Place) -> io::Result<()> {
        let held = self.acts.iter().all(Act::held);
        if self.as_json {
            let acts: Vec<_> = self.acts.iter().map(Act::json).collect();
            return writeln!(
                io::stdout(),
                "{:#}",
                json!({ "held": held, "store": place.url.to_string(), "acts": acts })
            );
        }
        if !place.url.is_durable() {
            writeln!(
                io::stdout(),
                "Not played: the death of the gateway, after which this store would remember nothing.\n"
            )?;
        }
        let sum = |each: fn(&Act) -> usize| self.acts.iter().map(each).sum::<usize>();
        let (requests, charged) = (sum(|act| act.requests), sum(|act| act.charged));
        let counts =
            format!("{} asked for money, it moved {}.", count(requests, "request"), count(charged, "time"));
        let verdict =
            if held { "Every promise held." } else { "A promise was broken: see the lines marked no." };
        writeln!(io::stdout(), "{counts} {}", self.style.strong(verdict))
    }
}

/// `1 time`, `2 times`.
fn count(number: usize, noun: &str) -> impl fmt::Display {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Colours only on a terminal without `NO_COLOR`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Plain,
    Ansi,
}

impl Style {
    pub(crate) fn of_stdout() -> Self {
        let is_wanted =
            io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if is_wanted { Self::Ansi } else { Self::Plain }
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.painted("1", text)
    }

    fn mark(self, held: bool) -> String {
        if held { self.painted("32", "yes") } else { self.painted("31", "no ") }
    }

    fn painted(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_holds_only_if_its_promises_and_the_ledger_do() {
        let act = || Act { charged: 1, charged_expected: 1, ..Act::new("retry", "A retry") };
        let with = |held| {
            let mut act = act();
            act.promise("the first", true);
            act.promise("the second", held);
            act
        };
        assert!(with(true).held());
        assert!(!with(false).held());
        assert!(!Act { charged: 2, ..with(true) }.held(), "charged twice");
        assert!(!Act { charged: 0, ..with(true) }.held(), "not charged");
    }
}
