//! Local work: a row, a message and the completion of the key in one transaction of the application's own, by SQL, as a role
//! that has only what `onlyonce migrate --grants` gives.
//!
//! 1. The table of payments is the ledger of this work. It is read at the end, when nothing fails any more.
//! 2. A COMMIT whose answer did not come is in doubt: the application runs its whole transaction again. `OO002` then says that
//!    the first one went through.
//! 3. What was acknowledged is kept here, outside of everything that is killed: [`Commit`].

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use onlyonce_testkit::engines::postgres::Server;
use onlyonce_testkit::history::{Said, What};
use onlyonce_testkit::wire::Wire;

use crate::run::{Run, locked};
use crate::session::{Failure, Session};
use crate::settings::DESTINATION;

/// The application's role, and its schema.
pub(crate) const ROLE: &str = "shop";
const DATABASE: &str = "postgres";
const TABLE: &str = "
    CREATE ROLE shop LOGIN;
    CREATE SCHEMA shop AUTHORIZATION shop;
    CREATE TABLE shop.payment (
        id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), subject integer NOT NULL,
        token integer NOT NULL, body text NOT NULL, customer text NOT NULL
    );
    ALTER TABLE shop.payment OWNER TO shop;
";
/// What a body ends with is not the end of a line.
const ROWS: &str = "
    SELECT id, (extract(epoch FROM at) * 1000000)::bigint, subject, token, body, customer FROM shop.payment ORDER BY id
";
const TRIES_MAX: u32 = 6;
const TRY_EVERY: Duration = Duration::from_millis(300);
/// Then it is in doubt, although the database may only stand still.
const COMMITTED_WITHIN: Duration = Duration::from_millis(1_500);

pub(crate) struct Application {
    run: Arc<Run>,
    line: Wire,
    idle: Mutex<Vec<Session>>,
    commits: Mutex<Vec<Commit>>,
}

/// What one attempt has to do.
pub(crate) struct Payment<'a> {
    pub(crate) handle: &'a str,
    pub(crate) subject: usize,
    pub(crate) token: u32,
    pub(crate) customer: String,
    pub(crate) said: &'a Said,
    /// Whether retries get the answer; otherwise only that it is done.
    pub(crate) is_kept: bool,
}

/// How the transaction goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Whether it takes the lock on the record first.
    pub(crate) holds: bool,
    /// A pause behind the row.
    pub(crate) pause: Duration,
    pub(crate) end: End,
}

/// How the transaction ends, if nothing else fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Commits,
    RollsBack,
    /// The application dies there.
    DiesAfterRow,
    DiesAfterMessage,
    DiesAfterCompletion,
    /// With COMMIT sent, and not answered.
    DiesInCommit,
    /// The same, and it lives on: the transaction is run again.
    HearsNothing,
    /// The session is ended between the completion and COMMIT; then the transaction is run again.
    LosesItsSession,
}

/// What the application knows in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
    /// `OO001`: a later attempt has begun.
    Superseded,
    InDoubt,
}

/// A transaction whose COMMIT was acknowledged, by the logical clock of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit {
    pub(crate) token: u32,
    pub(crate) began: u64,
    pub(crate) acknowledged: u64,
}

/// A row of the application's table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: u64,
    /// In microseconds of the database's clock.
    pub(crate) at: u64,
    pub(crate) subject: usize,
    pub(crate) token: u32,
    pub(crate) customer: String,
    pub(crate) said: Said,
}

/// Why one run of the transaction did not commit.
enum Stopped {
    /// COMMIT was not sent.
    Before(Failure),
    /// COMMIT was sent, and not answered with success.
    InCommit,
    /// As the script says.
    Died,
    RolledBack,
}

/// Creates the role with its table, and gives it what the program says that an application needs.
pub(crate) fn install(server: &Server, program: &Path) -> Result<()> {
    let rules = server.folder().join("data/pg_hba.conf");
    let old = fs::read_to_string(&rules).with_context(|| rules.display().to_string())?;
    fs::write(&rules, format!("host all {ROLE} 127.0.0.1/32 trust\n{old}"))?;
    server.sql("SELECT pg_reload_conf()");
    server.sql(TABLE);
    let mut grants = Command::new(program);
    grants.args(["migrate", "--grants", &format!("app={ROLE}"), "--store"]);
    let output = grants.arg(format!("{}?sslmode=disable", server.url(DATABASE))).output()?;
    if !output.status.success() {
        bail!("no grants: {}", String::from_utf8_lossy(&output.stderr));
    }
    server.sql(&String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Ends every session of the application.
pub(crate) fn end_sessions(server: &Server) {
    server.sql(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{ROLE}'"
    ));
}

/// All rows.
pub(crate) fn rows(server: &Server) -> Result<Vec<Row>> {
    server.sql(ROWS).lines().map(|line| row(line).with_context(|| format!("no row: {line:?}"))).collect()
}

fn row(line: &str) -> Option<Row> {
    let mut parts = line.split('|');
    let mut next = || parts.next();
    Some(Row {
        id: next()?.parse().ok()?,
        at: next()?.parse().ok()?,
        subject: next()?.parse().ok()?,
        token: next()?.parse().ok()?,
        said: Said { status: 201, body: next()?.to_owned() },
        customer: next()?.to_owned(),
    })
}

impl Row {
    /// Its event in the history of its key: the row was written a moment before it was committed.
    pub(crate) fn executed(&self) -> (u64, What) {
        (self.at, What::Executed { token: self.token, said: self.said.clone() })
    }
}

impl Application {
    /// With a line of its own to the database on this port.
    pub(crate) fn new(run: &Arc<Run>, database: u16) -> Result<Self> {
        let line = Wire::to(database).map_err(|reason| anyhow!(reason))?;
        Ok(Self { run: run.clone(), line, idle: Mutex::default(), commits: Mutex::default() })
    }

    pub(crate) fn line(&self) -> &Wire {
        &self.line
    }

    pub(crate) fn commits(&self) -> Vec<Commit> {
        locked(&self.commits).clone()
    }

    /// Runs the transaction, again where it failed, until it is known what became of it.
    pub(crate) fn pay(&self, payment: &Payment<'_>, script: Script) -> Outcome {
        let began = self.run.tick();
        let (mut script, mut in_doubt) = (script, false);
        for _ in 0..TRIES_MAX {
            let stopped = match self.transact(payment, script) {
                Ok(()) => {
                    self.count("a row was committed");
                    return self.committed(payment, began);
                }
                Err(stopped) => stopped,
            };
            match stopped {
                Stopped::Died if script.end == End::DiesInCommit => return Outcome::InDoubt,
                Stopped::Died | Stopped::RolledBack => return Outcome::RolledBack,
                Stopped::InCommit => {
                    self.count("a COMMIT was not answered");
                    in_doubt = true;
                }
                Stopped::Before(Failure::Lost) => self.count("a session was lost before COMMIT"),
                Stopped::Before(Failure::Refused { state, says }) => match state.as_str() {
                    "OO001" => {
                        self.count("OO001: superseded");
                        return Outcome::Superseded;
                    }
                    "OO002" if in_doubt => {
                        self.count("OO002: the COMMIT that was not answered went through");
                        return self.committed(payment, began);
                    }
                    _ => self.refused(payment, &state, &says),
                },
            }
            // The next one is to commit.
            (script.pause, script.end) = (Duration::ZERO, End::Commits);
            thread::sleep(TRY_EVERY);
        }
        if in_doubt { Outcome::InDoubt } else { Outcome::RolledBack }
    }

    fn committed(&self, payment: &Payment<'_>, began: u64) -> Outcome {
        let commit = Commit { token: payment.token, began, acknowledged: self.run.tick() };
        locked(&self.commits).push(commit);
        Outcome::Committed
    }

    /// A database that stops or starts, is full, or a lock that is waited for, is no fault.
    fn refused(&self, payment: &Payment<'_>, state: &str, says: &str) {
        match state {
            "57P01" | "57P02" | "57P03" | "53300" | "55P03" | "57014" => {
                self.count(&format!("refused: {state} {says}"));
            }
            _ => self.run.wrong(format!("token {} was refused with {state} {says}", payment.token)),
        }
    }

    /// A session that failed in any way is dropped, and what it had not committed is undone.
    fn transact(&self, payment: &Payment<'_>, script: Script) -> Result<(), Stopped> {
        let mut session = self.session().map_err(Stopped::Before)?;
        prepare(&mut session, payment, script)?;
        match script.end {
            End::RollsBack => {
                session.run("ROLLBACK").map_err(Stopped::Before)?;
                locked(&self.idle).push(session);
                return Err(Stopped::RolledBack);
            }
            End::DiesInCommit => {
                let _ = session.send("COMMIT");
                return Err(Stopped::Died);
            }
            End::HearsNothing => {
                let _ = session.send("COMMIT");
                return Err(Stopped::InCommit);
            }
            End::LosesItsSession => {
                let lost = session.run("SELECT pg_terminate_backend(pg_backend_pid())");
                return Err(Stopped::Before(lost.err().unwrap_or(Failure::Lost)));
            }
            End::Commits | End::DiesAfterRow | End::DiesAfterMessage | End::DiesAfterCompletion => {}
        }
        commit(&mut session).map_err(|_| Stopped::InCommit)?;
        locked(&self.idle).push(session);
        Ok(())
    }

    fn session(&self) -> Result<Session, Failure> {
        let idle = locked(&self.idle).pop();
        // One that was ended while nobody used it is not a lost transaction.
        if let Some(mut session) = idle
            && session.run("SELECT 1").is_ok()
        {
            return Ok(session);
        }
        Session::open(self.line.address(), ROLE, DATABASE)
    }

    fn count(&self, what: &str) {
        self.run.tally().happened(what);
    }
}

/// Everything up to COMMIT.
fn prepare(session: &mut Session, payment: &Payment<'_>, script: Script) -> Result<(), Stopped> {
    let Payment { handle, subject, token, customer, said, is_kept } = payment;
    let Said { status, body } = said;
    let mut run = |sql: &str| session.run(sql).map_err(Stopped::Before);
    let died = |end| if script.end == end { Err(Stopped::Died) } else { Ok(()) };
    run("BEGIN; SET LOCAL statement_timeout = '3s'")?;
    if script.holds {
        run(&format!("SELECT onlyonce_hold('{handle}')"))?;
    }
    let payment = run(&format!(
        "INSERT INTO payment (subject, token, customer, body) VALUES ({subject}, {token}, '{customer}', '{body}') RETURNING id"
    ))?;
    thread::sleep(script.pause);
    died(End::DiesAfterRow)?;
    run(&format!(
        "SELECT onlyonce_send('{DESTINATION}', convert_to('{{\"payment\":{payment},\"customer\":\"{customer}\"}}', 'UTF8'), \
         group_key => '{customer}', handle => '{handle}')"
    ))?;
    died(End::DiesAfterMessage)?;
    let stored = if *is_kept { format!("convert_to('{body}', 'UTF8')") } else { "NULL".to_owned() };
    run(&format!(
        "SELECT onlyonce_complete('{handle}', {status}, '{{\"content-type\": \"application/json\"}}', {stored})"
    ))?;
    died(End::DiesAfterCompletion)
}

fn commit(session: &mut Session) -> Result<(), Failure> {
    session.answered_within(COMMITTED_WITHIN)?;
    match session.run("COMMIT")?.as_str() {
        "COMMIT" => session.patient(),
        _ => Err(Failure::Lost),
    }
}
