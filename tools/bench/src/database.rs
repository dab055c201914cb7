//! The PostgreSQL that is measured on: one for a run, our own, gone with it.

use std::cell::Cell;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use onlyonce_testkit::engines::postgres::{self, Owned};
use onlyonce_testkit::wire::Wire;
use serde_json::Value;

/// A usual amount of memory, and no checkpoint in the middle of a measurement: the figure would show the checkpoint, and not
/// the load. All else, `fsync` and `synchronous_commit` above all, is PostgreSQL's default.
const SETTINGS: [(&str, &str); 3] =
    [("shared_buffers", "1GB"), ("max_wal_size", "6GB"), ("checkpoint_timeout", "1h")];

/// The prefix of databases that one server alone uses.
const FOR_ONE: &str = "bench_for_one_";
const SETTLED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) struct Database {
    server: Owned,
    made: Cell<u32>,
}

impl Database {
    /// Installs PostgreSQL where it is missing, and starts it.
    pub(crate) fn start() -> Result<Self> {
        postgres::install().map_err(|reason| anyhow!(reason))?;
        let server = postgres::Server::start(&SETTINGS).map_err(|reason| anyhow!(reason))?;
        Ok(Self { server, made: Cell::new(0) })
    }

    /// The name of a database that is empty.
    pub(crate) fn fresh(&self) -> String {
        self.make("bench_")
    }

    /// The same for one server alone. Databases of servers that have ended are dropped first. Otherwise they would be vacuumed
    /// while others are measured, and the WAL would grow by new files, where a server in normal use recycles its old ones.
    pub(crate) fn fresh_for_one(&self) -> String {
        let left = self.server.sql(&format!(
            "SELECT datname FROM pg_database AS left_over WHERE datname LIKE '{FOR_ONE}%'
             AND NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = left_over.datname)"
        ));
        left.lines().for_each(|name| self.drop(name));
        self.make(FOR_ONE)
    }

    fn make(&self, first: &str) -> String {
        self.made.set(self.made.get() + 1);
        let name = format!("{first}{}", self.made.get());
        self.server.sql(&format!("CREATE DATABASE {name}"));
        name
    }

    pub(crate) fn url(&self, name: &str) -> String {
        self.server.url(name)
    }

    /// A proxy to the server that counts round trips.
    pub(crate) fn wire(&self) -> Result<Wire> {
        Wire::to(self.server.port()).map_err(|reason| anyhow!(reason))
    }

    /// The same as [`Database::url`], through the proxy.
    pub(crate) fn url_by(&self, wire: &Wire, name: &str) -> String {
        let [direct, by_wire] = [self.server.port(), wire.address().port()].map(|port| format!(":{port}/"));
        self.url(name).replacen(&direct, &by_wire, 1)
    }

    /// The process that all others of the server are children of.
    pub(crate) fn pid(&self) -> Result<u32> {
        let path = self.server.folder().join("data/postmaster.pid");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
        pid.with_context(|| format!("cannot understand {text:?}"))
    }

    pub(crate) fn drop(&self, name: &str) {
        self.server.sql(&format!("DROP DATABASE {name} WITH (FORCE)"));
    }

    /// What one query says, as a count.
    pub(crate) fn count(&self, name: &str, sql: &str) -> Result<u64> {
        let told = self.server.sql_in(name, sql);
        told.parse().with_context(|| format!("{told:?} is no count"))
    }

    /// The same as a number.
    pub(crate) fn number(&self, name: &str, sql: &str) -> Result<f64> {
        let told = self.server.sql_in(name, sql);
        told.parse().with_context(|| format!("{told:?} is not a number"))
    }

    /// What has been done in a database so far. A session may report its counts only when it ends.
    pub(crate) fn counts(&self, name: &str) -> Result<Counts> {
        const SQL: &str = "
            SELECT json_build_object(
                'wal_bytes', pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),
                'wal_pages', (SELECT wal_fpi FROM pg_stat_wal),
                'commits', pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                'updates', coalesce(sum(n_tup_upd), 0),
                'hot', coalesce(sum(n_tup_hot_upd), 0),
                'dead', coalesce(sum(n_dead_tup), 0))
            FROM pg_stat_user_tables";
        let told: Value = serde_json::from_str(&self.server.sql_in(name, SQL))?;
        let number = |name: &str| told[name].as_f64().with_context(|| format!("no {name} in {told}"));
        Ok(Counts {
            wal_bytes: number("wal_bytes")?,
            wal_pages: number("wal_pages")?,
            commits: number("commits")?,
            trips: 0.0,
            updates: number("updates")?,
            hot: number("hot")?,
            dead: number("dead")?,
        })
    }

    /// Where the WAL ends now.
    pub(crate) fn wal_bytes(&self, name: &str) -> Result<f64> {
        self.number(name, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
    }

    /// Waits until nobody uses a database.
    pub(crate) fn settle(&self, name: &str) -> Result<()> {
        let sessions = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND state IS NOT NULL AND pid <> pg_backend_pid()"
        );
        let began = Instant::now();
        while self.number(name, &sessions)? > 0.0 {
            if began.elapsed() > SETTLED_WITHIN {
                bail!("sessions in {name} did not end within {SETTLED_WITHIN:?}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// How long the sweeper takes to look for lapsed leases, as though all had had the time to lapse. The table is vacuumed
    /// first. Every completed attempt leaves a dead entry in the index by state and due time, and a long-running reader
    /// keeps vacuum from removing it: the look has to pass over all of those.
    pub(crate) fn sweep_ms(&self, name: &str) -> Result<f64> {
        const SWEEP: &str = "
            SET enable_seqscan = off;
            EXPLAIN (ANALYZE, FORMAT json)
            SELECT * FROM onlyonce_record
            WHERE state = 'running' AND due_at <= (SELECT clock_timestamp() + interval '1 hour')
            ORDER BY due_at, id LIMIT 100";
        self.server.sql_in(name, "VACUUM onlyonce_record");
        let told: Value = serde_json::from_str(&self.server.sql_in(name, SWEEP))?;
        told[0]["Execution Time"].as_f64().with_context(|| format!("no time in {told}"))
    }

    /// A transaction that reads the database as it is now, and stays open for as long as the value lives: meanwhile vacuum
    /// cannot remove any row that it could still see.
    pub(crate) fn reader(&self, name: &str) -> Result<Reader> {
        let mut psql = self.server.psql(name);
        let mut child =
            psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("cannot start psql")?;
        let stdin = child.stdin.as_mut().expect("stdin was piped");
        stdin
            .write_all(b"BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM onlyonce_record;\n")?;
        stdin.flush()?;
        Ok(Reader(child))
    }
}

/// See [`Database::reader`].
pub(crate) struct Reader(Child);

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a server has counted, or what it counted for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) wal_bytes: f64,
    /// Whole pages among them: the first change of a page after a checkpoint writes one.
    pub(crate) wal_pages: f64,
    /// Of transactions that wrote.
    pub(crate) commits: f64,
    /// Round trips. The server does not count them: this is 0 until they are counted by [`Database::wire`].
    pub(crate) trips: f64,
    pub(crate) updates: f64,
    /// Updates within a page, which leave the indexes alone.
    pub(crate) hot: f64,
    pub(crate) dead: f64,
}

impl Counts {
    /// What came to it since `before`, for each of so many requests.
    pub(crate) fn each(&self, before: &Self, requests: f64) -> Self {
        let each = |of: fn(&Self) -> f64| (of(self) - of(before)) / requests;
        Self {
            wal_bytes: each(|counts| counts.wal_bytes),
            wal_pages: each(|counts| counts.wal_pages),
            commits: each(|counts| counts.commits),
            trips: each(|counts| counts.trips),
            updates: each(|counts| counts.updates),
            hot: each(|counts| counts.hot),
            dead: each(|counts| counts.dead),
        }
    }
}
