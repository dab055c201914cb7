//! What is measured, and what it must reach.

/// The handler and nothing around it.
pub(crate) const PLAIN: &str = "plain handler";
pub(crate) const LAYER_SQLITE: &str = "layer, SQLite";
pub(crate) const HAND_SQLITE: &str = "hand-written, SQLite";
pub(crate) const LAYER_POSTGRES: &str = "layer, PostgreSQL";
pub(crate) const HAND_POSTGRES: &str = "hand-written, PostgreSQL";
const LAYER_MARIADB: &str = "layer, MariaDB";
const HAND_MARIADB: &str = "hand-written, MariaDB";
const LAYER_REDIS: &str = "layer, Redis";
const HAND_REDIS: &str = "hand-written, Redis";
pub(crate) const PROXY: &str = "plain hyper proxy";
pub(crate) const GATEWAY_SQLITE: &str = "gateway, SQLite";
/// The package of the plain handler, which also stands behind everything that forwards.
pub(crate) const PLAIN_PACKAGE: &str = "bench-plain";

/// What is measured together, each beside the same baseline.
#[derive(Debug)]
pub(crate) struct Series {
    /// The name of the subject that everything is compared with.
    pub(crate) baseline: &'static str,
    pub(crate) subjects: &'static [Subject],
    pub(crate) workloads: &'static [&'static str],
    targets: &'static [Target],
    /// Whose CPU time is counted.
    pub(crate) cpu_of: &'static str,
    /// Its chart in `docs/`.
    pub(crate) chart: &'static str,
}

/// A server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// What each request carries besides its key; `%s` is a session, of which there are a thousand, `{now}` the time in unix seconds.
    pub(crate) headers: &'static [&'static str],
    /// Ours must reach the targets; the others are there to compare.
    pub(crate) is_ours: bool,
    /// Whom it is also compared with, by name.
    pub(crate) beside: Option<&'static str>,
}

/// What is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// A package of the workspace `bench/` that has the handler itself; the binary has the same name.
    Handler { package: &'static str, place: Place },
    /// One that forwards to the plain handler.
    Proxy { package: &'static str },
    /// nginx, forwarding to the plain handler.
    Nginx,
    /// The product's own program, forwarding to the plain handler, with these settings in its file.
    Gateway { place: Place, settings: &'static str },
}

/// Where a server keeps what it knows: what it is told when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has no choice, or nothing to keep.
    Own,
    Memory,
    /// A new file for each measurement.
    File,
    /// A new database for each measurement, on the one PostgreSQL of this run.
    Database,
    /// The same on MariaDB.
    Mariadb,
    /// A new prefix for each measurement, on the one Redis of this run.
    Redis,
}

pub(crate) const CALLER: &[&str] = &["Authorization: Bearer bench"];

pub(crate) const fn subject(name: &'static str, program: Program) -> Subject {
    Subject { name, program, headers: CALLER, is_ours: false, beside: None }
}

const fn ours(name: &'static str, program: Program) -> Subject {
    Subject { is_ours: true, ..subject(name, program) }
}

/// The layer, around a handler.
pub(crate) static LAYER: Series = Series {
    baseline: PLAIN,
    subjects: &[
        subject(PLAIN, Program::Handler { package: PLAIN_PACKAGE, place: Place::Own }),
        ours("layer, memory", Program::Handler { package: "bench-layer", place: Place::Memory }),
        Subject {
            headers: &["Authorization: Bearer bench", "Cookie: session=%s"],
            ..subject(
                "axum-idempotent",
                Program::Handler { package: "bench-axum-idempotent", place: Place::Own },
            )
        },
        Subject {
            beside: Some(HAND_SQLITE),
            ..ours(LAYER_SQLITE, Program::Handler { package: "bench-layer", place: Place::File })
        },
        subject(HAND_SQLITE, Program::Handler { package: "bench-hand-sqlite", place: Place::File }),
    ],
    workloads: &["unique", "replay", "mix"],
    targets: &[
        target("layer, memory", "unique", [0.55, 0.75], Some(1.6)),
        target("layer, memory", "replay", [0.85, 0.95], Some(1.2)),
    ],
    cpu_of: "the server's process",
    chart: "performance.svg",
};

/// Ten thousand wait for one that runs, and somebody asks how they do.
const CONNECTIONS: &str = "[listener]\nconnections_max = 11000\n";

/// The gateway, before a service.
pub(crate) static GATEWAY: Series = Series {
    baseline: PROXY,
    subjects: &[
        subject(PROXY, Program::Proxy { package: "bench-proxy" }),
        ours("gateway, memory", Program::Gateway { place: Place::Memory, settings: CONNECTIONS }),
        ours(GATEWAY_SQLITE, Program::Gateway { place: Place::File, settings: CONNECTIONS }),
        subject("nginx", Program::Nginx),
    ],
    workloads: &["unique", "replay", "mix", "unkeyed"],
    targets: &[
        target("gateway, memory", "unique", [0.70, 0.85], Some(1.3)),
        target("gateway, memory", "replay", [1.4, 2.0], Some(0.4)),
        target("gateway, memory", "unkeyed", [0.95, 0.95], None),
        target(GATEWAY_SQLITE, "unique", [0.40, 0.55], Some(1.8)),
        target(GATEWAY_SQLITE, "replay", [1.4, 2.0], Some(0.4)),
        target(GATEWAY_SQLITE, "unkeyed", [0.95, 0.95], None),
    ],
    cpu_of: "the proxy and the handler behind it together",
    chart: "performance-gateway.svg",
};

/// The layer on PostgreSQL, beside what one writes by hand for it.
pub(crate) static POSTGRES: Series = Series {
    baseline: HAND_POSTGRES,
    subjects: &[
        subject(HAND_POSTGRES, Program::Handler { package: "bench-hand-postgres", place: Place::Database }),
        ours(LAYER_POSTGRES, Program::Handler { package: "bench-layer", place: Place::Database }),
    ],
    workloads: &["unique", "replay", "mix"],
    targets: &[
        target(LAYER_POSTGRES, "unique", [2.3, 3.0], Some(0.4)),
        target(LAYER_POSTGRES, "replay", [2.0, 5.0], None),
    ],
    cpu_of: "the server and all processes of PostgreSQL together",
    chart: "performance-postgres.svg",
};

/// The layer on MariaDB, beside what one writes by hand for it.
pub(crate) static MARIADB: Series = Series {
    baseline: HAND_MARIADB,
    subjects: &[
        subject(HAND_MARIADB, Program::Handler { package: "bench-hand-mysql", place: Place::Mariadb }),
        ours(LAYER_MARIADB, Program::Handler { package: "bench-layer", place: Place::Mariadb }),
    ],
    workloads: &["unique", "replay", "mix"],
    targets: &[
        target(LAYER_MARIADB, "unique", [1.6, 2.3], Some(0.45)),
        target(LAYER_MARIADB, "replay", [2.0, 5.0], None),
    ],
    cpu_of: "the server and MariaDB together",
    chart: "performance-mariadb.svg",
};

/// The layer on Redis, beside what one writes by hand for it, of the same durability.
pub(crate) static REDIS: Series = Series {
    baseline: HAND_REDIS,
    subjects: &[
        subject(HAND_REDIS, Program::Handler { package: "bench-hand-redis", place: Place::Redis }),
        ours(LAYER_REDIS, Program::Handler { package: "bench-layer", place: Place::Redis }),
    ],
    workloads: &["unique", "replay", "mix"],
    targets: &[
        target(LAYER_REDIS, "unique", [0.65, 0.80], None),
        target(LAYER_REDIS, "replay", [1.0, 1.2], None),
    ],
    cpu_of: "the server and Redis together",
    chart: "performance-redis.svg",
};

/// What a subject must reach under a workload, as ratios to the baseline.
#[derive(Debug)]
pub(crate) struct Target {
    subject: &'static str,
    workload: &'static str,
    /// Requests a second: a promise.
    pub(crate) rps_floor: f64,
    /// Requests a second: what we are after.
    pub(crate) rps_goal: f64,
    /// CPU time a request, at most: what we are after.
    pub(crate) cpu_goal: Option<f64>,
}

const fn target(
    subject: &'static str,
    workload: &'static str,
    [rps_floor, rps_goal]: [f64; 2],
    cpu_goal: Option<f64>,
) -> Target {
    Target { subject, workload, rps_floor, rps_goal, cpu_goal }
}

/// In a storm, from the first answer to the last of those that wait.
pub(crate) const WAKE_MS_MAX: f64 = 5.0;
/// The same, where those that wait are on another node than the work.
pub(crate) const WAKE_ACROSS_MS_MAX: f64 = 50.0;
/// What ten thousand waiting duplicates may cost.
pub(crate) const WAITERS_BYTES_MAX: u64 = 200_000_000;
/// How much more memory a gateway may hold after this many keys than before them.
pub(crate) const KEYS_PROMISED: u64 = 1_000_000;
pub(crate) const KEYS_BYTES_MAX: u64 = 16_000_000;
/// How much more memory a gateway may hold while so much is uploaded through it without a key.
pub(crate) const UPLOAD_PROMISED: u64 = 1 << 30;
pub(crate) const UPLOAD_BYTES_MAX: u64 = 16_000_000;

impl Series {
    pub(crate) fn named(&self, name: &str) -> &'static Subject {
        let subject = self.subjects.iter().find(|subject| subject.name == name);
        subject.expect("every named subject is in its series")
    }

    pub(crate) fn target(&self, subject: &str, workload: &str) -> Option<&'static Target> {
        self.targets.iter().find(|target| target.subject == subject && target.workload == workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_of_something_that_is_measured() {
        for series in [&LAYER, &GATEWAY, &POSTGRES, &MARIADB, &REDIS] {
            assert_eq!(series.named(series.baseline).name, series.subjects[0].name);
            for target in series.targets {
                assert!(series.named(target.subject).is_ours, "{target:?}");
                assert!(series.workloads.contains(&target.workload), "{target:?}");
            }
        }
    }
}
