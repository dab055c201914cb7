//! docs/performance.svg, by hand: a bar for each subject and workload, with ticks at the floor and the goal. It has
//! no background, and its colours follow the reader's light or dark scheme.

use std::fmt::Write as _;

use crate::figures::{Figures, Row};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 215.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 56.0;
const BAR: f64 = 20.0;
const STEP: f64 = 34.0;
/// Between two workloads.
const GAP: f64 = 12.0;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #1f2328 } \
.title { font-weight: 600; font-size: 15px } .small { font-size: 11px; fill: #59636e } .end { text-anchor: end } \
.middle { text-anchor: middle } .ours { fill: #0969da } .other { fill: #afb8c1 } .axis { stroke: #d1d9e0 } \
.base { stroke: #59636e; stroke-dasharray: 3 3 } .floor { stroke: #cf222e; stroke-width: 2.5 } \
.goal { stroke: #1a7f37; stroke-width: 2.5 } \
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } .ours { fill: #4493f8 } \
.other { fill: #656c76 } .axis { stroke: #3d444d } .base { stroke: #9198a1 } .floor { stroke: #f85149 } .goal { stroke: #3fb950 } }";

pub(crate) fn draw(figures: &Figures) -> String {
    let baseline = figures.series.baseline;
    let rows: Vec<Row> = figures.rows().into_iter().filter(|row| row.subject.name != baseline).collect();
    let scale = Scale::of(&rows);
    let mut bars = String::new();
    let mut y = TOP;
    let mut workload = None;
    for row in &rows {
        if workload.is_some_and(|workload| workload != row.workload) {
            y += GAP;
        }
        workload = Some(row.workload);
        bars.push_str(&bar(row, y, &scale));
        y += STEP;
    }
    let height = y + 34.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Requests a second as a ratio to the {baseline}\">\n<style>{STYLE}</style>\n\
         <text class=\"title\" x=\"12\" y=\"24\">Requests a second, as a ratio to the {baseline}</text>\n{}{}{bars}</svg>\n",
        legend(baseline),
        axis(&scale, y),
    )
}

/// Ratios to pixels.
struct Scale {
    max: f64,
}

impl Scale {
    /// From nothing to a little more than the longest bar, and at least to the baseline.
    fn of(rows: &[Row]) -> Self {
        let longest = rows.iter().map(|row| row.rps_ratio.median).fold(1.0, f64::max);
        Self { max: (longest * 4.0).ceil() / 4.0 }
    }

    /// Between two lines of the axis: so many that their figures can be read.
    fn step(&self) -> f64 {
        if self.max > 4.0 { 1.0 } else { 0.25 }
    }

    fn x(&self, ratio: f64) -> f64 {
        LEFT + ratio / self.max * (WIDTH - LEFT - RIGHT)
    }
}

fn bar(row: &Row, y: f64, scale: &Scale) -> String {
    let class = if row.subject.is_ours { "ours" } else { "other" };
    let end = scale.x(row.rps_ratio.median);
    let middle = y + BAR / 2.0 + 4.5;
    let mut text = format!(
        "<text class=\"end\" x=\"{:.0}\" y=\"{middle:.1}\">{}, {}</text>\n\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>\n",
        LEFT - 10.0,
        row.subject.name,
        row.workload,
        end - LEFT,
    );
    let mut label = end;
    if let Some(target) = row.target {
        for (class, ratio) in [("floor", target.rps_floor), ("goal", target.rps_goal)] {
            let x = scale.x(ratio);
            let _ = writeln!(
                text,
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y - 4.0,
                y + BAR + 4.0
            );
            label = label.max(x);
        }
    }
    let _ =
        writeln!(text, "<text x=\"{:.1}\" y=\"{middle:.1}\">{:.2}</text>", label + 8.0, row.rps_ratio.median);
    text
}

fn axis(scale: &Scale, bottom: f64) -> String {
    let mut text = String::new();
    let mut ratio = 0.0;
    while ratio <= scale.max + 0.001 {
        let x = scale.x(ratio);
        let class = if (ratio - 1.0_f64).abs() < 0.001 { "base" } else { "axis" };
        let _ = write!(
            text,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>\n\
             <text class=\"small middle\" x=\"{x:.1}\" y=\"{:.1}\">{ratio:.2}</text>\n",
            TOP - 8.0,
            bottom + 16.0
        );
        ratio += scale.step();
    }
    text
}

fn legend(baseline: &str) -> String {
    let y = 20.0;
    let entry = |class: &str, x: f64, word: &str| {
        format!(
            "<line class=\"{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{:.0}\" y2=\"{:.0}\"/>\
             <text class=\"small\" x=\"{:.0}\" y=\"24\">{word}</text>\n",
            y - 8.0,
            y + 6.0,
            x + 7.0
        )
    };
    entry("floor", 520.0, "floor") + &entry("goal", 580.0, "goal") + &entry("base", 640.0, baseline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::figures;

    #[test]
    fn a_bar_has_its_ticks_and_its_figure() {
        let svg = draw(&figures([80.0; 3], 10.0));
        assert_eq!(svg.matches("<rect").count(), 1);
        assert_eq!(svg.matches("class=\"floor\"").count(), 2, "one in the legend, one at the bar");
        assert!(svg.contains(">0.80</text>"), "{svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
