//! The figures in words: the table for the terminal, and the measured part of docs/performance.md.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::figures::{Figures, Row, Standing, cores};
use crate::findings;
use crate::lines::spread_words;

/// The parts of the page that are measured, each by a run of its own.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Measured,
    Growth,
    Gateway,
    Postgres,
    Mariadb,
    Redis,
    WriteFirst,
    Dashboard,
}

/// For the terminal.
pub(crate) fn table(figures: &Figures) -> String {
    let mut text = format!(
        "{:<8} {:<20} {:>7} {:>7} {:>7} {:>7}  {:<18} {:<13} {:<18} {:<6}\n",
        "workload",
        "subject",
        "RPS",
        "p50 ms",
        "p99 ms",
        "CPU µs",
        "RPS to baseline",
        "floor → goal",
        "CPU to baseline",
        "goal"
    );
    for row in figures.rows() {
        let _ = writeln!(
            text,
            "{:<8} {:<20} {:>7.0} {:>7.2} {:>7.2} {:>7.1}  {:<18} {:<13} {:<18} {:<6} {}",
            row.workload,
            row.subject.name,
            row.rps.median,
            row.p50_ms.median,
            row.p99_ms.median,
            row.cpu_us.median,
            spread_words(row.rps_ratio, 2),
            rps_target(&row),
            spread_words(row.cpu_ratio, 2),
            cpu_target(&row),
            row.standing().words()
        );
    }
    text.push('\n');
    for finding in findings::of(figures) {
        let _ = writeln!(text, "{}{}", finding.text, suffix(&finding.standing));
    }
    text
}

/// For the page, between its marks.
pub(crate) fn section(figures: &Figures) -> String {
    let series = figures.series;
    let mut text = format!(
        "![Requests a second as a ratio to the {}]({})\n\n\
         Measured on {} cores, which wrk shares: median of {} rounds of {} s each, lowest and highest in brackets. Our own\n\
         targets are beside the figures; CPU is what {} used for a request.\n\n\
         | workload | subject | RPS | p50 ms | p99 ms | RPS to baseline | floor → goal | CPU to baseline | goal | |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        series.baseline,
        series.chart,
        cores(),
        figures.rounds,
        figures.seconds,
        series.cpu_of
    );
    for row in figures.rows() {
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.2} | {:.2} | {} | {} | {} | {} | {} |",
            row.workload,
            row.subject.name,
            row.rps.median,
            row.p50_ms.median,
            row.p99_ms.median,
            spread_words(row.rps_ratio, 2),
            rps_target(&row),
            spread_words(row.cpu_ratio, 2),
            cpu_target(&row),
            row.standing().words()
        );
    }
    text.push('\n');
    for finding in findings::of(figures) {
        let _ = writeln!(text, "- {}{}", finding.text, suffix(&finding.standing));
    }
    text
}

/// The page with one measured part replaced.
pub(crate) fn replace(page: &str, part: Part, section: &str) -> Result<String> {
    let [begin, end] = part.marks();
    let parts = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let Some((before, after)) = parts else {
        bail!("docs/performance.md has lost its marks; it needs a line \"{begin}\" and a line \"{end}\"");
    };
    Ok(format!("{before}{begin}\n{section}{end}{after}"))
}

impl Part {
    fn marks(self) -> [String; 2] {
        let name = match self {
            Self::Measured => "measured",
            Self::Growth => "growth",
            Self::Gateway => "gateway",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Redis => "redis",
            Self::WriteFirst => "write-first",
            Self::Dashboard => "dashboard",
        };
        ["begin", "end"].map(|edge| format!("<!-- {name}: {edge} -->"))
    }
}

fn rps_target(row: &Row) -> String {
    row.target.map_or_else(String::new, |target| format!("{:.2} → {:.2}", target.rps_floor, target.rps_goal))
}

fn cpu_target(row: &Row) -> String {
    let goal = row.target.and_then(|target| target.cpu_goal);
    goal.map_or_else(String::new, |goal| format!("≤ {goal}"))
}

fn suffix(standing: &Standing) -> String {
    match standing {
        Standing::Shown => String::new(),
        Standing::Reached | Standing::ShortOfGoal | Standing::ShortOfPromise => {
            format!(": {}", standing.words())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::figures;

    #[test]
    fn what_falls_short_says_so() {
        let figures = figures([50.0; 3], 10.0);
        assert!(table(&figures).contains("0.55 → 0.75"), "{}", table(&figures));
        assert!(table(&figures).contains("FALLS SHORT"));
        assert!(section(&figures).contains("| 0.50 (0.50–0.50) | 0.55 → 0.75 |"), "{}", section(&figures));
    }

    #[test]
    fn only_the_measured_part_is_replaced() {
        let [begin, end] = Part::Measured.marks();
        let page = |text| format!("before\n{begin}\n{text}\n{end}\nafter\n");
        assert_eq!(replace(&page("old"), Part::Measured, "new\n").unwrap(), page("new"));
        assert!(replace(&page("old"), Part::Growth, "new").is_err());
    }
}
