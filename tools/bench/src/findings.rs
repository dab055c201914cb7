//! What was found besides the rows of the table: in a sentence, with how it stands to what was promised.

use serde_json::Value;

use crate::figures::{Figures, Standing};
use crate::lines::{Line, spread_words};
use crate::subjects::{
    KEYS_BYTES_MAX, KEYS_PROMISED, Subject, UPLOAD_BYTES_MAX, UPLOAD_PROMISED, WAITERS_BYTES_MAX, WAKE_MS_MAX,
};

/// A figure that is no row of the table.
pub(crate) struct Finding {
    pub(crate) text: String,
    pub(crate) standing: Standing,
}

/// The storms, the waiting, what memory is held, and what could not be measured.
pub(crate) fn of(figures: &Figures) -> Vec<Finding> {
    let beside = figures.series.subjects.iter().flat_map(|subject| beside(figures, subject));
    let storms = figures.storms.iter().map(|(subject, found)| storm(subject, found));
    let waiting = figures.waiting_storms.iter().map(|(subject, found)| waiting(subject, found));
    let crowds = figures.crowds.iter().map(|(subject, found)| crowd(subject, found));
    let keys = figures.keys.iter().map(|(subject, found)| keys(subject, found));
    let uploads = figures.uploads.iter().map(|(subject, found)| upload(subject, found));
    let missing = figures.missing.iter().map(|(subject, why)| Finding {
        text: format!("{}: not measured: {why}", subject.name),
        standing: judge(subject, false),
    });
    let options = figures.options.iter().map(|Line { what, measured, target, standing }| Finding {
        text: format!("{what}: {measured} ({target})"),
        standing: standing.clone(),
    });
    beside
        .chain(storms)
        .chain(waiting)
        .chain(crowds)
        .chain(keys)
        .chain(uploads)
        .chain(options)
        .chain(missing)
        .collect()
}

/// A subject beside another that is not the baseline.
fn beside(figures: &Figures, subject: &'static Subject) -> Vec<Finding> {
    let Some(other) = subject.beside else { return Vec::new() };
    let finding = |workload: &&str| {
        let rps = figures.to(other, subject.name, workload, |sample| sample.rps)?;
        let cpu = figures.to(other, subject.name, workload, |sample| sample.cpu_us)?;
        Some(Finding {
            text: format!(
                "{}: {workload}: {} times the RPS of {other}, {} of its CPU a request",
                subject.name,
                spread_words(rps, 2),
                spread_words(cpu, 2)
            ),
            standing: Standing::Shown,
        })
    };
    figures.series.workloads.iter().filter_map(finding).collect()
}

fn storm(subject: &Subject, storm: &Value) -> Finding {
    let runs = &storm["runs_per_key_max"];
    let kept = runs == 1;
    Finding {
        text: format!(
            "{}: storm of {} on one key: {runs} runs, answers {}",
            subject.name, storm["connections"], storm["statuses"]
        ),
        standing: judge(subject, kept),
    }
}

/// Whether one run answered everybody in a storm that waits, the last at most so long after the first.
pub(crate) fn is_woken_within(ms_max: f64, storm: &Value) -> bool {
    let everyone =
        storm["rounds"].as_u64().zip(storm["connections"].as_u64()).map(|(rounds, all)| rounds * all);
    storm["statuses"]["201"].as_u64() == everyone
        && storm["runs_per_key_max"] == 1
        && storm["spread_ms_median"].as_f64().is_some_and(|ms| ms <= ms_max)
}

fn waiting(subject: &Subject, storm: &Value) -> Finding {
    Finding {
        text: format!(
            "{}: storm of {} with `Prefer: wait`: answers {}, the last {:.1} ms after the first (worst round {:.1} ms; at most {WAKE_MS_MAX} ms)",
            subject.name,
            storm["connections"],
            storm["statuses"],
            storm["spread_ms_median"].as_f64().unwrap_or(f64::NAN),
            storm["spread_ms_max"].as_f64().unwrap_or(f64::NAN),
        ),
        standing: judge(subject, is_woken_within(WAKE_MS_MAX, storm)),
    }
}

/// What counts is what the open requests cost beyond their idle connections: those are the clients' own.
fn crowd(subject: &Subject, crowd: &Value) -> Finding {
    let bytes = |name: &str| crowd[name].as_u64().unwrap_or(0);
    let idle = bytes("memory_connected_bytes");
    let waiting = bytes("memory_waiting_bytes").saturating_sub(idle);
    let waiters = bytes("waiters").max(1);
    let answered =
        crowd["statuses"]["201"].as_u64() == Some(waiters + 1) && crowd["everyone_in_time"] == true;
    let what = if subject.is_ours { "waiting duplicates" } else { "open requests, each running" };
    Finding {
        text: format!(
            "{}: {waiters} {what}: {} MB, {} bytes each (at most {} MB), beside {} MB for their idle connections; \
             answers {}, the last {:.0} ms after the first",
            subject.name,
            waiting / 1_000_000,
            waiting / waiters,
            WAITERS_BYTES_MAX / 1_000_000,
            idle.saturating_sub(bytes("memory_before_bytes")) / 1_000_000,
            crowd["statuses"],
            crowd["wake_ms"].as_f64().unwrap_or(f64::NAN),
        ),
        standing: judge(subject, answered && crowd["runs"] == 1 && waiting < WAITERS_BYTES_MAX),
    }
}

/// A promise about more keys than were sent can be seen to be broken, not to be kept.
fn keys(subject: &Subject, found: &Value) -> Finding {
    let number = |name: &str| found[name].as_u64().unwrap_or(0);
    let (before, after, sent) = (number("memory_before_bytes"), number("memory_after_bytes"), number("keys"));
    let is_flat = after < before + KEYS_BYTES_MAX;
    let is_enough = sent >= KEYS_PROMISED;
    Finding {
        text: format!(
            "{}: {sent} more keys: {} MB before, {} MB after, {} MB at most meanwhile (at most {} MB more, promised for {KEYS_PROMISED})",
            subject.name,
            before / 1_000_000,
            after / 1_000_000,
            number("memory_max_bytes") / 1_000_000,
            KEYS_BYTES_MAX / 1_000_000,
        ),
        standing: if is_flat && !is_enough { Standing::Shown } else { judge(subject, is_flat) },
    }
}

fn upload(subject: &Subject, found: &Value) -> Finding {
    let number = |name: &str| found[name].as_u64().unwrap_or(0);
    let (before, most) = (number("memory_before_bytes"), number("memory_max_bytes"));
    let has_arrived = found["status"] == 200 && found["arrived"] == found["bytes"];
    let kept = has_arrived && number("bytes") >= UPLOAD_PROMISED && most < before + UPLOAD_BYTES_MAX;
    Finding {
        text: format!(
            "{}: {} MiB uploaded without a key: answer {}, {:.1} s, {} MB before, {} MB at most meanwhile (at most {} MB more)",
            subject.name,
            number("bytes") >> 20,
            found["status"],
            found["seconds"].as_f64().unwrap_or(f64::NAN),
            before / 1_000_000,
            most / 1_000_000,
            UPLOAD_BYTES_MAX / 1_000_000,
        ),
        standing: judge(subject, kept),
    }
}

fn judge(subject: &Subject, kept: bool) -> Standing {
    match (subject.is_ours, kept) {
        (false, _) => Standing::Shown,
        (true, true) => Standing::Reached,
        (true, false) => Standing::ShortOfPromise,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figures::Sample;
    use crate::figures::tests::figures;
    use crate::subjects::{GATEWAY, GATEWAY_SQLITE, HAND_SQLITE, LAYER, LAYER_SQLITE, PROXY};

    #[test]
    fn a_layer_that_does_not_build_keeps_no_promise_and_a_rival_may() {
        let mut figures = figures([80.0; 3], 10.0);
        figures.missing = vec![(&LAYER.subjects[2], "it does not build".to_owned())];
        assert!(figures.keeps_its_promises());
        figures.missing = vec![(&LAYER.subjects[1], "it does not build".to_owned())];
        assert!(!figures.keeps_its_promises());
    }

    #[test]
    fn a_subject_is_told_beside_another_by_the_rounds_they_share() {
        let mut figures = Figures::new(&LAYER, 3, 1);
        for rps in [10.0, 20.0, 30.0] {
            let sample = |rps| Sample { rps, p50_ms: 1.0, p99_ms: 2.0, cpu_us: 1.0, requests: 1 };
            figures.add(LAYER.named(LAYER_SQLITE), "unique", sample(rps * 4.0));
            figures.add(LAYER.named(HAND_SQLITE), "unique", sample(rps));
        }
        let findings = of(&figures);
        assert!(
            findings[0].text.contains("4.00 (4.00–4.00) times the RPS of hand-written"),
            "{}",
            findings[0].text
        );
    }

    #[test]
    fn a_storm_that_runs_twice_falls_short() {
        let mut figures = figures([80.0; 3], 10.0);
        figures
            .storms
            .push((&LAYER.subjects[1], json!({ "connections": 64, "runs_per_key_max": 2, "statuses": {} })));
        assert!(!figures.keeps_its_promises());
    }

    #[test]
    fn memory_that_grows_falls_short_and_too_few_keys_show_nothing() {
        let found = |keys, after| json!({ "keys": keys, "memory_before_bytes": 90_000_000, "memory_after_bytes": after, "memory_max_bytes": after });
        let standing = |name, keys_sent, after| keys(GATEWAY.named(name), &found(keys_sent, after)).standing;
        assert_eq!(standing(GATEWAY_SQLITE, KEYS_PROMISED, 100_000_000), Standing::Reached);
        assert_eq!(standing(GATEWAY_SQLITE, KEYS_PROMISED, 107_000_000), Standing::ShortOfPromise);
        assert_eq!(standing(GATEWAY_SQLITE, 1_000, 100_000_000), Standing::Shown);
        assert_eq!(standing(GATEWAY_SQLITE, 1_000, 107_000_000), Standing::ShortOfPromise);
    }

    #[test]
    fn an_upload_is_kept_only_if_all_of_it_arrived() {
        let found = |arrived: u64, most: u64| {
            json!({
                "bytes": UPLOAD_PROMISED, "arrived": arrived, "status": 200, "seconds": 1.0,
                "memory_before_bytes": 20_000_000, "memory_max_bytes": most,
            })
        };
        let standing = |name, arrived, most| upload(GATEWAY.named(name), &found(arrived, most)).standing;
        assert_eq!(standing(GATEWAY_SQLITE, UPLOAD_PROMISED, 21_000_000), Standing::Reached);
        assert_eq!(standing(GATEWAY_SQLITE, UPLOAD_PROMISED - 1, 21_000_000), Standing::ShortOfPromise);
        assert_eq!(standing(GATEWAY_SQLITE, UPLOAD_PROMISED, 40_000_000), Standing::ShortOfPromise);
        assert_eq!(standing(PROXY, UPLOAD_PROMISED, 40_000_000), Standing::Shown);
    }
}
