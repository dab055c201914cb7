//! Every step at which the process is killed, and what its death leaves behind.
//!
//! This is the one list. `coverage.rs` compares it with the source: a step that is missing here, and one that is only
//! here, are failures both.

use onlyonce_testkit::engines::server;

/// A step, and how a victim comes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failpoint {
    /// As in `ONLYONCE_FAILPOINT`: the step's name and, after a colon, which time it is reached.
    pub(crate) name: &'static str,
    pub(crate) stage: Stage,
}

/// What a victim keeps its records in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// A file, whose next owner knows that the last one is dead.
    Sqlite,
    /// A server, where a dead process is only missed when its leases lapse.
    Server(server::Engine),
}

impl Engine {
    /// Those of this build.
    pub(crate) const ALL: &[Self] = &[
        Self::Sqlite,
        Self::Server(server::Engine::Postgres),
        #[cfg(feature = "mysql")]
        Self::Server(server::Engine::Mysql),
        #[cfg(feature = "redis")]
        Self::Server(server::Engine::Redis),
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Server(engine) => engine.name(),
        }
    }

    /// Every step that a victim on this engine can come to.
    pub(crate) fn failpoints(self) -> impl Iterator<Item = &'static Failpoint> + Clone {
        ALL.iter().filter(move |failpoint| self.comes_to(failpoint.name))
    }

    /// Whether this step is the engine's own, or of no engine.
    pub(crate) fn comes_to(self, step: &str) -> bool {
        let servers = server::Engine::ALL.map(Self::Server);
        self.has(step) || !servers.into_iter().chain([Self::Sqlite]).any(|other| other.has(step))
    }

    /// Whether this step is the engine's own.
    pub(crate) fn has(self, step: &str) -> bool {
        step.split('.').next() == Some(self.name())
    }
}

/// What a victim must be doing to come to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Making a file, or tables, where there were none.
    Creating,
    /// Opening a file that a killed process left, with an attempt in it that ran.
    Opening,
    /// Serving an order; what is left of that order.
    Serving(Left),
    /// Keeping the lease of a handler that takes long.
    Renewing,
    /// Settling an attempt whose lease lapsed.
    Sweeping,
    /// Deleting a record that expired.
    Reaping,
    /// Copying the WAL into the file.
    Checkpointing,
}

/// What is left of an order when its process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// No trace: nothing was reserved, so nothing ran.
    Nothing,
    /// A reservation; the work had not begun, but the file cannot tell.
    Reserved,
    /// A reservation, and the work is done.
    Worked,
    /// The completion; only its client has not heard of it.
    Completed,
}

const fn at(name: &'static str, stage: Stage) -> Failpoint {
    Failpoint { name, stage }
}

/// In the order in which a life comes to them.
pub(crate) const ALL: [Failpoint; 58] = [
    at("sqlite.create.before", Stage::Creating),
    at("sqlite.create.after", Stage::Creating),
    at("sqlite.migrate.before:1", Stage::Creating),
    at("sqlite.migrate.after:1", Stage::Creating),
    at("postgres.migrate.before:1", Stage::Creating),
    at("postgres.migrate.after:1", Stage::Creating),
    at("postgres.migrate.before:2", Stage::Creating),
    at("postgres.migrate.after:2", Stage::Creating),
    at("mysql.migrate.before:1", Stage::Creating),
    at("mysql.migrate.between:1", Stage::Creating),
    at("mysql.migrate.between:5", Stage::Creating),
    at("mysql.migrate.after:1", Stage::Creating),
    at("mysql.migrate.before:2", Stage::Creating),
    at("mysql.migrate.after:2", Stage::Creating),
    at("redis.migrate.before:1", Stage::Creating),
    at("redis.migrate.after:1", Stage::Creating),
    at("sqlite.abandon.before", Stage::Opening),
    at("sqlite.abandon.after", Stage::Opening),
    at("sqlite.open.ready", Stage::Opening),
    at("begin.before", Stage::Serving(Left::Nothing)),
    at("sqlite.commit.before:1", Stage::Serving(Left::Nothing)),
    at("sqlite.commit.after:1", Stage::Serving(Left::Reserved)),
    at("postgres.write.before:1", Stage::Serving(Left::Nothing)),
    at("postgres.write.after:1", Stage::Serving(Left::Reserved)),
    at("mysql.write.before:1", Stage::Serving(Left::Nothing)),
    at("mysql.write.after:1", Stage::Serving(Left::Reserved)),
    at("redis.write.before:1", Stage::Serving(Left::Nothing)),
    at("redis.write.after:1", Stage::Serving(Left::Reserved)),
    at("begin.after", Stage::Serving(Left::Reserved)),
    at("run.before", Stage::Serving(Left::Reserved)),
    at("run.after", Stage::Serving(Left::Worked)),
    at("finish.before", Stage::Serving(Left::Worked)),
    at("sqlite.commit.before:2", Stage::Serving(Left::Worked)),
    at("sqlite.commit.after:2", Stage::Serving(Left::Completed)),
    at("postgres.write.before:2", Stage::Serving(Left::Worked)),
    at("postgres.write.after:2", Stage::Serving(Left::Completed)),
    at("mysql.write.before:2", Stage::Serving(Left::Worked)),
    at("mysql.write.after:2", Stage::Serving(Left::Completed)),
    at("redis.write.before:2", Stage::Serving(Left::Worked)),
    at("redis.write.after:2", Stage::Serving(Left::Completed)),
    at("finish.after", Stage::Serving(Left::Completed)),
    at("renew.before", Stage::Renewing),
    at("renew.after", Stage::Renewing),
    at("sweep.before", Stage::Sweeping),
    at("sweep.after", Stage::Sweeping),
    at("reap.before", Stage::Reaping),
    at("sqlite.reap.before", Stage::Reaping),
    at("sqlite.reap.after", Stage::Reaping),
    at("postgres.reap.before", Stage::Reaping),
    at("postgres.reap.after", Stage::Reaping),
    at("mysql.reap.before", Stage::Reaping),
    at("mysql.reap.after", Stage::Reaping),
    at("redis.reap.before", Stage::Reaping),
    at("redis.reap.after", Stage::Reaping),
    at("reap.after", Stage::Reaping),
    at("sqlite.checkpoint.before", Stage::Checkpointing),
    at("sqlite.checkpoint.after", Stage::Checkpointing),
    at("sqlite.checkpoint.last", Stage::Checkpointing),
];

impl Failpoint {
    /// The one of that name.
    pub(crate) fn named(name: &str) -> &'static Self {
        ALL.iter().find(|failpoint| failpoint.name == name).expect("it is in the list")
    }

    /// The step alone.
    pub(crate) fn step(&self) -> &'static str {
        self.name.split_once(':').map_or(self.name, |(step, _)| step)
    }

    /// As part of a test's name.
    pub(crate) fn label(&self) -> String {
        self.name.replace(['.', ':'], "_")
    }

    /// Whether the death at this step leaves an attempt that the next life finds running.
    pub(crate) fn leaves_running(&self) -> bool {
        match self.stage {
            Stage::Serving(left) => matches!(left, Left::Reserved | Left::Worked),
            Stage::Renewing => true,
            Stage::Creating | Stage::Opening | Stage::Sweeping | Stage::Reaping | Stage::Checkpointing => {
                false
            }
        }
    }
}
