//! What is measured, and what it must reach.

/// What everything is compared with.
pub(super) const BASELINE: &str = "plain handler";
pub(super) const WORKLOADS: [&str; 3] = ["unique", "replay", "mix"];

/// A server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// In the workspace `bench/`; the binary has the same name.
    pub(super) package: &'static str,
    /// What each request carries besides its key; `%s` is a session, of which there are a thousand.
    pub(super) headers: &'static [&'static str],
    /// Ours must reach the targets; the others are there to compare.
    pub(super) is_ours: bool,
}

pub(super) const SUBJECTS: [Subject; 3] = [
    Subject {
        name: BASELINE,
        package: "bench-plain",
        headers: &["Authorization: Bearer bench"],
        is_ours: false,
    },
    Subject {
        name: "layer, memory",
        package: "bench-layer",
        headers: &["Authorization: Bearer bench"],
        is_ours: true,
    },
    Subject {
        name: "axum-idempotent",
        package: "bench-axum-idempotent",
        headers: &["Authorization: Bearer bench", "Cookie: session=%s"],
        is_ours: false,
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

pub(super) fn target(subject: &str, workload: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.subject == subject && target.workload == workload)
}
