//! What the server recorded of every write of a record: what no client is told, and no gateway that is killed can count.
//!
//! | store | recorded by |
//! |---|---|
//! | PostgreSQL, MariaDB | a trigger, in the transaction of the write: its row is there exactly if the write is |
//! | Redis | its append-only file, which has every command that changed something (`audit/aof.rs`) |
//!
//! Names of states are recorded and not whose token wrote, so only what holds for every key is judged here: a completed record stays
//! until it has expired, and what is unknown runs only after a verdict. This alone knows when a key expired, and was reaped or used
//! anew, and when a probe settled one.

mod aof;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};
use onlyonce_testkit::engines::postgres;
use onlyonce_testkit::engines::server::Server;
use onlyonce_testkit::history::{Verdict, What};

use crate::final_state::FinalState;
use crate::kind::Kind;
use crate::run::{Run, Subject};
use crate::store::DATABASE;

const POSTGRES: &str = "
    CREATE TABLE chaos_audit (
        number bigserial PRIMARY KEY, at timestamptz NOT NULL, was text, state text, is_due boolean NOT NULL, id text NOT NULL,
        completed_by text
    );
    -- In the functions of the store nothing is found by its bare name.
    CREATE FUNCTION chaos_audit() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        -- Every write of a record has a new revision.
        IF TG_OP = 'UPDATE' AND OLD.revision = NEW.revision THEN
            RETURN NULL;
        END IF;
        INSERT INTO chaos_audit (at, was, state, is_due, id, completed_by) VALUES (
            clock_timestamp(), OLD.state, NEW.state, coalesce(OLD.due_at <= clock_timestamp(), false),
            encode(coalesce(NEW.id, OLD.id), 'hex'), NEW.completed_by
        );
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_audit AFTER INSERT OR UPDATE OR DELETE ON onlyonce_record
        FOR EACH ROW EXECUTE FUNCTION chaos_audit();
    CREATE TABLE chaos_messages (was text NOT NULL, state text NOT NULL, is_due boolean NOT NULL);
    CREATE FUNCTION chaos_messages() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        IF TG_OP = 'DELETE' OR OLD.state <> NEW.state OR OLD.token IS DISTINCT FROM NEW.token THEN
            INSERT INTO chaos_messages (was, state, is_due)
            VALUES (OLD.state, coalesce(NEW.state, 'nothing'), OLD.due_at <= clock_timestamp());
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_messages AFTER UPDATE OR DELETE ON onlyonce_outbox
        FOR EACH ROW EXECUTE FUNCTION chaos_messages();
";
const POSTGRES_WRITES: &str = "
    SELECT id, (extract(epoch FROM at) * 1000000)::bigint, coalesce(was, 'nothing'), coalesce(state, 'nothing'), is_due,
           coalesce(completed_by = 'probe', false)
    FROM chaos_audit ORDER BY number
";
/// Without a number that counts up: the engine reads its stamps as the last one that was inserted. Microseconds tell the writes of a
/// record apart.
const MYSQL: &str = "
    CREATE TABLE chaos_audit (
        at BIGINT NOT NULL, was VARCHAR(16), state VARCHAR(16), is_due BOOLEAN NOT NULL, id CHAR(64) NOT NULL,
        completed_by VARCHAR(16)
    );
    CREATE FUNCTION chaos_now() RETURNS BIGINT NOT DETERMINISTIC NO SQL
        RETURN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CONVERT_TZ(SYSDATE(6), @@session.time_zone, '+00:00'));
    CREATE TRIGGER chaos_insert AFTER INSERT ON onlyonce_record FOR EACH ROW
        INSERT INTO chaos_audit VALUES (chaos_now(), NULL, NEW.state, FALSE, LOWER(HEX(NEW.id)), NEW.completed_by);
    CREATE TRIGGER chaos_update AFTER UPDATE ON onlyonce_record FOR EACH ROW
        INSERT INTO chaos_audit
        SELECT chaos_now(), OLD.state, NEW.state, COALESCE(OLD.due_at <= chaos_now(), FALSE), LOWER(HEX(NEW.id)), NEW.completed_by
        FROM DUAL WHERE OLD.revision <> NEW.revision;
    CREATE TRIGGER chaos_delete AFTER DELETE ON onlyonce_record FOR EACH ROW
        INSERT INTO chaos_audit
        VALUES (chaos_now(), OLD.state, NULL, COALESCE(OLD.due_at <= chaos_now(), FALSE), LOWER(HEX(OLD.id)), NULL);
";
const MYSQL_WRITES: &str = "
    SELECT CONCAT_WS('|', id, at, COALESCE(was, 'nothing'), COALESCE(state, 'nothing'), IF(is_due, 't', 'f'),
                     IF(COALESCE(completed_by, '') = 'probe', 't', 'f'))
    FROM chaos_audit ORDER BY at
";
/// The same of messages. A claim is due when it lapses.
const CLAIMS: &str = "SELECT was, state, is_due, count(*) FROM chaos_messages GROUP BY 1, 2, 3";

/// Every write of every record, in order.
pub(crate) struct Audit {
    writes: Vec<Write>,
}

/// A write of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    id: String,
    /// In microseconds of the server's clock.
    at: u64,
    was: String,
    state: String,
    /// Whether the lease had lapsed or the retention was over.
    is_due: bool,
    by_probe: bool,
}

/// A transition by the names of its states, and whether the lease had lapsed or the retention was over.
struct Transition {
    was: String,
    state: String,
    is_due: bool,
    times: u64,
}

/// Lets the server record. The tables of the store must be there.
pub(crate) fn install(server: Server<'_>) {
    match server {
        Server::Postgres(server) => drop(server.sql(POSTGRES)),
        Server::Mysql(server) => drop(server.sql(DATABASE, MYSQL)),
        // It records by itself.
        Server::Redis(_) => {}
        Server::Dynamodb(_) => unreachable!("there is no chaos on DynamoDB's emulator"),
    }
}

/// Counts what became of messages, and reports what no store should have written.
pub(crate) fn judge_claims(server: &postgres::Server, run: &Run) -> Result<()> {
    for line in server.sql(CLAIMS).lines() {
        let seen = parsed(line).with_context(|| format!("no note of a message: {line:?}"))?;
        if let Some(name) = seen.name_of_message() {
            run.tally().wrote(name, seen.times);
        }
        if let Some(why) = seen.is_wrong_of_message() {
            let Transition { was, state, times, .. } = &seen;
            run.wrong(format!("{times} times a message that was {was} became {state}: {why}"));
        }
    }
    Ok(())
}

impl Audit {
    pub(crate) fn read(server: Server<'_>) -> Result<Self> {
        let lines = match server {
            Server::Postgres(server) => server.sql(POSTGRES_WRITES),
            Server::Mysql(server) => server.sql(DATABASE, MYSQL_WRITES),
            Server::Dynamodb(_) => unreachable!("there is no chaos on DynamoDB's emulator"),
            Server::Redis(server) => return Ok(Self { writes: aof::writes(server.folder())? }),
        };
        let writes =
            lines.lines().map(|line| write(line).with_context(|| format!("no note of a write: {line:?}")));
        Ok(Self { writes: writes.collect::<Result<_>>()? })
    }

    /// Counts the transitions, and reports those that no store should have written.
    pub(crate) fn judge(&self, run: &Run) {
        let mut transitions: BTreeMap<_, u64> = BTreeMap::new();
        for Write { was, state, is_due, .. } in &self.writes {
            *transitions.entry((was, state, *is_due)).or_default() += 1;
        }
        for ((was, state, is_due), times) in transitions {
            let seen = Transition { was: was.clone(), state: state.clone(), is_due, times };
            for name in seen.names() {
                run.tally().wrote(name, seen.times);
            }
            if let Some(why) = seen.is_wrong() {
                run.wrong(format!("{times} times {was} became {state}: {why}"));
            }
        }
    }

    /// When the keys that expired did so, each time, by the ids of their records: a finished record past its retention was
    /// deleted, or replaced by a new reservation.
    pub(crate) fn expired(&self) -> HashMap<String, Vec<u64>> {
        let mut expired: HashMap<_, Vec<_>> = HashMap::new();
        for Write { id, at, was, state, is_due, .. } in &self.writes {
            let was_finished = ["completed", "retryable"].contains(&was.as_str());
            if was_finished && *is_due && ["nothing", "running"].contains(&state.as_str()) {
                expired.entry(id.clone()).or_default().push(*at);
            }
        }
        expired
    }

    /// The verdicts on each key, by its number: what was unknown was settled by its probe, or its attempt came back and said that it
    /// had not run.
    pub(crate) fn ruled(&self, run: &Run) -> Result<HashMap<usize, Vec<(u64, What)>>> {
        let mut ruled: HashMap<_, Vec<_>> = HashMap::new();
        for Write { id, at, state, by_probe, .. } in self.writes.iter().filter(|write| write.was == "unknown")
        {
            let verdict = match state.as_str() {
                "retryable" => None,
                "completed" if *by_probe => Some(()),
                _ => continue,
            };
            let subject =
                run.of_record(id).with_context(|| format!("a verdict on a key that nobody sent: {id}"))?;
            let (verdict, name) = match verdict {
                Some(()) => (Verdict::Happened(run.effect_of(&subject)), "settled by the probe: happened"),
                None => (Verdict::DidNotHappen, "settled: did not happen"),
            };
            run.tally().wrote(name, 1);
            ruled.entry(subject.number).or_default().push((*at, What::Ruled(verdict)));
        }
        Ok(ruled)
    }

    /// Every write of one record, for those who read a failed run.
    pub(crate) fn notes(&self, subject: &Subject) -> String {
        let writes = self.writes.iter().filter(|write| write.id == subject.id);
        let line =
            |Write { at, was, state, is_due, .. }: &Write| format!("{at} {was} -> {state}, due: {is_due}");
        writes.map(line).collect::<Vec<_>>().join("\n")
    }

    /// Clients and the store must agree on how many keys of each kind have ended how.
    pub(crate) fn compare(&self, run: &Run, ends: &[(Arc<Subject>, FinalState)]) {
        let mut told = BTreeMap::new();
        for (subject, end) in ends.iter().filter(|(subject, _)| subject.kind != Kind::Brief) {
            let state = match end {
                FinalState::Completed(_) | FinalState::CompletedUnkept => "completed",
                FinalState::Unknown => "unknown",
                FinalState::Never => "nowhere",
            };
            *told.entry(format!("{}: {state}", subject.kind.name())).or_insert(0_u64) += 1;
        }
        let last: HashMap<_, _> = self.writes.iter().map(|write| (&write.id, &write.state)).collect();
        let mut stands = BTreeMap::new();
        for (id, state) in last.into_iter().filter(|(_, state)| *state != "nothing") {
            let kind = run.of_record(id).map(|subject| subject.kind);
            if kind != Some(Kind::Brief) {
                let kind = kind.map_or("nobody's", Kind::name);
                *stands.entry(format!("{kind}: {state}")).or_insert(0_u64) += 1;
            }
        }
        if stands != told {
            run.wrong(format!("clients were told {told:?}, and the store has {stands:?}"));
        }
    }
}

fn write(line: &str) -> Option<Write> {
    let mut parts = line.split('|');
    let mut next = || parts.next();
    Some(Write {
        id: next()?.to_owned(),
        at: next()?.parse().ok()?,
        was: next()?.to_owned(),
        state: next()?.to_owned(),
        is_due: next()? == "t",
        by_probe: next()? == "t",
    })
}

fn parsed(line: &str) -> Option<Transition> {
    let mut parts = line.split('|');
    let mut next = || parts.next();
    let (was, state) = (next()?.to_owned(), next()?.to_owned());
    Some(Transition { was, state, is_due: next()? == "t", times: next()?.parse().ok()? })
}

impl Transition {
    /// What it is counted as.
    fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if self.is_due && self.was == "running" {
            names.push("a lease lapsed");
        }
        match (self.was.as_str(), self.state.as_str()) {
            ("completed" | "retryable", "nothing") => names.push("expired, and reaped"),
            ("completed" | "retryable", "running") if self.is_due => names.push("expired, and used anew"),
            ("nothing", "running") => names.push("reserved"),
            ("running", "running") if !self.is_due => names.push("a lease was renewed"),
            ("running" | "retryable", "running") => names.push("ran again"),
            ("running" | "retryable", "unknown") => names.push("became unknown"),
            ("running", "retryable") => names.push("became retryable"),
            ("running", "completed") => names.push("completed"),
            ("unknown" | "retryable", "completed") => {
                names.push("completed late: a probe, or the late truth");
            }
            ("unknown", "unknown") => names.push("asked about"),
            _ => {}
        }
        names
    }

    fn name_of_message(&self) -> Option<&'static str> {
        match (self.was.as_str(), self.state.as_str()) {
            ("waiting", "claimed") => Some("a message was claimed"),
            ("claimed", "claimed") => Some("a claim lapsed"),
            ("claimed", "waiting") => Some("a delivery failed"),
            ("claimed", "delivered") => Some("a message was delivered"),
            _ => None,
        }
    }

    fn is_wrong_of_message(&self) -> Option<&'static str> {
        match (self.was.as_str(), self.state.as_str()) {
            ("waiting", "claimed") if !self.is_due => Some("it was not due"),
            ("claimed", "claimed") if !self.is_due => Some("another claim held"),
            ("waiting" | "claimed", "claimed") | ("claimed", "waiting" | "delivered") => None,
            (_, "dead") => Some("nothing makes a dead letter here"),
            _ => Some("what is delivered stays, and only what is claimed is delivered"),
        }
    }

    fn is_wrong(&self) -> Option<&'static str> {
        match (self.was.as_str(), self.state.as_str()) {
            ("completed" | "retryable", "nothing" | "running") if self.is_due => None,
            ("completed", _) => Some("what is completed is not written again until it has expired"),
            (_, "nothing") => Some("it was deleted, and had not expired"),
            ("unknown", "running") => Some("it ran in doubt, and nobody gave a verdict"),
            ("nothing", "completed" | "unknown" | "retryable") => Some("nobody had reserved it"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(line: &str) -> (Vec<&'static str>, bool) {
        let seen = parsed(line).unwrap();
        (seen.names(), seen.is_wrong().is_some())
    }

    #[test]
    fn writes_are_counted_by_what_they_mean() {
        assert_eq!(seen("nothing|running|f|3"), (vec!["reserved"], false));
        assert_eq!(seen("running|running|f|3"), (vec!["a lease was renewed"], false));
        assert_eq!(seen("running|running|t|3"), (vec!["a lease lapsed", "ran again"], false));
        assert_eq!(seen("running|unknown|t|3"), (vec!["a lease lapsed", "became unknown"], false));
        assert_eq!(seen("completed|running|t|3"), (vec!["expired, and used anew"], false));
        assert_eq!(seen("completed|nothing|t|3"), (vec!["expired, and reaped"], false));
        assert_eq!(
            seen("unknown|completed|f|3"),
            (vec!["completed late: a probe, or the late truth"], false)
        );
    }

    #[test]
    fn a_claim_while_another_holds_is_told_and_so_is_a_second_delivery() {
        let is_wrong = |line: &str| parsed(line).unwrap().is_wrong_of_message().is_some();
        for line in
            ["waiting|claimed|t|1", "claimed|claimed|t|1", "claimed|waiting|f|1", "claimed|delivered|t|1"]
        {
            assert!(!is_wrong(line), "{line}");
        }
        for line in [
            "waiting|claimed|f|1",
            "claimed|claimed|f|1",
            "delivered|claimed|t|1",
            "waiting|delivered|t|1",
            "claimed|dead|f|1",
            "waiting|nothing|t|1",
        ] {
            assert!(is_wrong(line), "{line}");
        }
    }

    #[test]
    fn writes_that_break_a_promise_are_told() {
        for line in [
            "completed|running|f|1",
            "completed|completed|f|1",
            "completed|nothing|f|1",
            "unknown|nothing|t|1",
            "running|nothing|t|1",
            "unknown|running|f|1",
            "nothing|completed|f|1",
        ] {
            assert!(seen(line).1, "{line}");
        }
    }
}
