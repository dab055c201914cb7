//! Text for people: tables, ages, colours, and commands that can be pasted into a shell.
//!
//! Keys, labels, reasons and routes are somebody else's text. What a terminal would act on instead of showing it is escaped.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;

/// Text without control characters and without marks that change the order or hide what follows.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => cleaned.push_str("\\n"),
            '\r' => cleaned.push_str("\\r"),
            '\t' => cleaned.push_str("\\t"),
            hidden if is_hidden(hidden) => {
                // Writing to a string does not fail.
                let _ = write!(cleaned, "\\u{{{:x}}}", u32::from(hidden));
            }
            shown => cleaned.push(shown),
        }
    }
    cleaned
}

/// Control characters; marks of direction, joiners and separators, which are not seen.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// A member of an answer as text; empty where it is null or missing.
pub(crate) fn member(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        other @ (Value::Array(_) | Value::Object(_)) => clean(&other.to_string()),
    }
}

/// A span in the two largest units that say something.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 86_400, seconds / 3_600, seconds / 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => two(hours, "h", minutes % 60, "min"),
        (days, hours, _) => two(days, "d", hours % 24, "h"),
    }
}

fn two(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{large} {unit}") } else { format!("{large} {unit} {small} {small_unit}") }
}

/// How long ago a moment of an answer was, by this machine's clock; none where it is no moment.
pub(crate) fn age(moment: &Value, now: jiff::Timestamp) -> Option<Duration> {
    let at: jiff::Timestamp = moment.as_str()?.parse().ok()?;
    Some(Duration::try_from(now.duration_since(at)).unwrap_or_default())
}

/// One word for a shell, whatever is in it.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// How much colour the output has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Terminal,
    None,
}

impl Colour {
    /// Of stdout.
    pub(crate) fn of_stdout() -> Self {
        let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if is_wanted && io::stdout().is_terminal() { Self::Terminal } else { Self::None }
    }

    /// A state, so that what needs somebody is seen.
    pub(crate) fn state(self, state: &str, shown: &str) -> String {
        match state {
            "unknown" => self.paint("31", shown),
            "running" | "pending" => self.paint("36", shown),
            "retryable" => self.paint("33", shown),
            "completed" => self.paint("32", shown),
            _ => shown.to_owned(),
        }
    }

    /// How a check ended.
    pub(crate) fn level(self, level: &str, shown: &str) -> String {
        match level {
            "ok" => self.paint("32", shown),
            "warn" => self.paint("33", shown),
            "fail" => self.paint("31", shown),
            _ => shown.to_owned(),
        }
    }

    pub(crate) fn bold(self, shown: &str) -> String {
        self.paint("1", shown)
    }

    fn paint(self, code: &str, shown: &str) -> String {
        match self {
            Self::Terminal => format!("\u{1b}[{code}m{shown}\u{1b}[0m"),
            Self::None => shown.to_owned(),
        }
    }
}

/// Columns as wide as their widest cell, up to `ALIGNED_MAX`; the last one has no end.
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

/// A wider cell shifts the rest of its own row, and of no other.
const ALIGNED_MAX: usize = 48;

impl<const N: usize> Table<N> {
    pub(crate) fn new(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    pub(crate) fn push(&mut self, row: [String; N]) {
        self.rows.push(row);
    }

    /// Writes all rows. `paint` is given the number of a row and column, and what is shown there.
    pub(crate) fn write(
        &self,
        out: &mut impl Write,
        paint: impl Fn(usize, usize, String) -> String,
    ) -> io::Result<()> {
        let width = |column: usize| {
            let widths = self.rows.iter().map(|row| row[column].chars().count());
            widths.filter(|width| *width <= ALIGNED_MAX).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..N).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let is_last = row[column + 1..].iter().all(String::is_empty);
                let padding =
                    if is_last { 0 } else { widths[column].saturating_sub(cell.chars().count()) + 2 };
                line.push_str(&paint(number, column, cell.clone()));
                line.push_str(&" ".repeat(padding));
                if is_last {
                    break;
                }
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// Tells on stderr how far a long piece of work has come, where somebody watches.
pub(crate) struct Progress {
    is_watched: bool,
    is_told: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_watched: io::stderr().is_terminal(), is_told: false }
    }

    pub(crate) fn tell(&mut self, says: &str) {
        if self.is_watched {
            self.is_told = true;
            // The work goes on even if nobody can be told.
            let _ = write!(io::stderr(), "\r\u{1b}[K{says}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_told {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped() {
        for (text, shown) in [
            ("order-17", "order-17"),
            ("Zoë · POST /pay", "Zoë · POST /pay"),
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("gpj\u{202e}exe", "gpj\\u{202e}exe"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
        ] {
            assert_eq!(clean(text), shown);
        }
    }

    #[test]
    fn a_span_is_told_in_words() {
        for (seconds, told) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (734, "12 min"),
            (3_600, "1 h"),
            (5_430, "1 h 30 min"),
            (86_400, "1 d"),
            (277_200, "3 d 5 h"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), told);
        }
    }

    #[test]
    fn an_age_is_never_negative() {
        let now: jiff::Timestamp = "2026-11-17T02:03:04Z".parse().unwrap();
        assert_eq!(age(&"2026-11-17T02:02:04.000Z".into(), now), Some(Duration::from_secs(60)));
        assert_eq!(age(&"2026-11-17T03:00:00.000Z".into(), now), Some(Duration::ZERO));
        assert_eq!(age(&Value::Null, now), None);
        assert_eq!(age(&"soon".into(), now), None);
    }

    #[test]
    fn a_word_for_a_shell_stays_one_word() {
        for (text, shown) in [
            ("order-17", "order-17"),
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(rm)", "'$(rm)'"),
            ("it's", r"'it'\''s'"),
            ("a\\b", "'a\\b'"),
            ("~ann", "'~ann'"),
        ] {
            assert_eq!(quoted(text), shown);
        }
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be_and_lines_have_no_end_of_spaces() {
        let mut table = Table::new(["A", "LONG", "C"]);
        table.push(["wide".to_owned(), "x".to_owned(), String::new()]);
        table.push(["ü".to_owned(), String::new(), "z".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out, |_, _, cell| cell).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "A     LONG  C\nwide  x\nü           z\n");
    }

    #[test]
    fn a_very_wide_cell_shifts_its_own_row_only() {
        let mut table = Table::new(["KEY", "WHY"]);
        let long = "x".repeat(255);
        table.push([long.clone(), "lost".to_owned()]);
        table.push(["order-7".to_owned(), "lost".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out, |_, _, cell| cell).unwrap();
        let shown = format!("KEY      WHY\n{long}  lost\norder-7  lost\n");
        assert_eq!(String::from_utf8(out).unwrap(), shown);
    }

    #[test]
    fn colours_are_only_for_terminals() {
        assert_eq!(Colour::None.state("unknown", "unknown"), "unknown");
        assert_eq!(Colour::Terminal.state("unknown", "unknown"), "\u{1b}[31munknown\u{1b}[0m");
        assert_eq!(Colour::None.bold("x"), "x");
    }
}
