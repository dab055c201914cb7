//! What is measured, and what it must reach.

/// What everything is compared with.
pub(super) const BASELINE: &str = "plain handler";
pub(super) const LAYER_SQLITE: &str = "layer, SQLite";
pub(super) const HAND_SQLITE: &str = "hand-written, SQLite";
pub(super) const WORKLOADS: [&str; 3] = ["unique", "replay", "mix"];

/// A server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// In the workspace `bench/`; the binary has the same name.
    pub(super) package: &'static str,
    pub(super) place: Place,
    /// What each request carries besides its key; `%s` is a session, of which there are a thousand.
    pub(super) headers: &'static [&'static str],
    /// Ours must reach the targets; the others are there to compare.
    pub(super) is_ours: bool,
    /// Whom it is also compared with, by name.
    pub(super) beside: Option<&'static str>,
}

/// Where a server keeps what it knows: what it is told when it starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has no choice, or nothing to keep.
    Own,
    Memory,
    /// A new file for each measurement.
    File,
}

pub(super) const SUBJECTS: [Subject; 5] = [
    Subject {
        name: BASELINE,
        package: "bench-plain",
        place: Place::Own,
        headers: &["Authorization: Bearer bench"],
        is_ours: false,
        beside: None,
    },
    Subject {
        name: "layer, memory",
        package: "bench-layer",
        place: Place::Memory,
        headers: &["Authorization: Bearer bench"],
        is_ours: true,
        beside: None,
    },
    Subject {
        name: "axum-idempotent",
        package: "bench-axum-idempotent",
        place: Place::Own,
        headers: &["Authorization: Bearer bench", "Cookie: session=%s"],
        is_ours: false,
        beside: None,
    },
    Subject {
        name: LAYER_SQLITE,
        package: "bench-layer",
        place: Place::File,
        headers: &["Authorization: Bearer bench"],
        is_ours: true,
        beside: Some(HAND_SQLITE),
    },
    Subject {
        name: HAND_SQLITE,
        package: "bench-hand-sqlite",
        place: Place::File,
        headers: &["Authorization: Bearer bench"],
        is_ours: false,
        beside: None,
    },
];

/// What a subject must reach under a workload, as ratios to the baseline.
pub(super) struct Target {
    pub(super) subject: &'static str,
    pub(super) workload: &'static str,
    /// Requests a second: a promise.
    pub(super) rps_floor: f64,
    /// Requests a second: what we are after.
    pub(super) rps_goal: f64,
    /// CPU time a request, at most: what we are after.
    pub(super) cpu_goal: f64,
}

const TARGETS: [Target; 2] = [
    Target { subject: "layer, memory", workload: "unique", rps_floor: 0.60, rps_goal: 0.75, cpu_goal: 1.6 },
    Target { subject: "layer, memory", workload: "replay", rps_floor: 0.85, rps_goal: 0.95, cpu_goal: 1.2 },
];

/// In a storm, from the first answer to the last of those that wait.
pub(super) const WAKE_MS_MAX: f64 = 5.0;
/// What ten thousand waiting duplicates may cost.
pub(super) const WAITERS_BYTES_MAX: u64 = 200_000_000;

pub(super) fn named(name: &str) -> &'static Subject {
    SUBJECTS.iter().find(|subject| subject.name == name).expect("every named subject is in the list")
}

pub(super) fn target(subject: &str, workload: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.subject == subject && target.workload == workload)
}
