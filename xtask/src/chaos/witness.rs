//! A trigger in the database that notes every write of a record: what no client could be told, and no gateway that is
//! killed can count.
//!
//! The note is of the same transaction as the write, so it is there exactly if the write is. It shows states by name and
//! not whose token wrote, so what is judged here is only what holds for every key: what is completed stays until it has
//! expired, and nobody gives verdicts in this run. And it alone knows when a key expired, and was reaped or used anew.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use onlyonce_testkit::engines::postgres::Server;

use super::ending::End;
use super::kind::Kind;
use super::stage::{Stage, Subject};

const INSTALL: &str = "
    CREATE TABLE witness (
        number bigserial PRIMARY KEY, at timestamptz NOT NULL, route text, key text NOT NULL,
        was text, state text, is_due boolean NOT NULL
    );
    CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        -- That it is listed elsewhere now is no write of the record.
        IF TG_OP = 'UPDATE' AND (OLD.revision, OLD.state, OLD.record) = (NEW.revision, NEW.state, NEW.record) THEN
            RETURN NULL;
        END IF;
        INSERT INTO witness (at, route, key, was, state, is_due) VALUES (
            clock_timestamp(), coalesce(NEW.route, OLD.route), coalesce(NEW.key, OLD.key), OLD.state, NEW.state,
            coalesce(OLD.due_at <= clock_timestamp(), false)
        );
        RETURN NULL;
    END $$;
    CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON onlyonce_record
        FOR EACH ROW EXECUTE FUNCTION witness();
";
const MOVES: &str = "
    SELECT coalesce(was, 'nothing'), coalesce(state, 'nothing'), is_due, count(*) FROM witness GROUP BY 1, 2, 3
";
const STANDS: &str =
    "SELECT route, state, count(*) FROM onlyonce_record WHERE route <> 'POST /brief' GROUP BY 1, 2";
/// Finished and past its end, and then deleted, or reserved as if it had never been.
const EXPIRED: &str = "
    SELECT key, (extract(epoch FROM at) * 1000000)::bigint FROM witness
    WHERE was IN ('completed', 'retryable') AND is_due AND (state IS NULL OR state = 'running') ORDER BY number
";

/// From one state to another, by name, and whether its lease had lapsed, or its retention was over.
struct Move {
    was: String,
    state: String,
    is_due: bool,
    times: u64,
}

/// Watches from now on. The tables must be there.
pub(super) fn install(server: &Server) {
    server.sql(INSTALL);
}

/// Counts what the store was driven into, and tells what no store should have written.
pub(super) fn read(server: &Server, stage: &Stage) -> Result<()> {
    for line in server.sql(MOVES).lines() {
        let seen = parsed(line).with_context(|| format!("no note of a write: {line:?}"))?;
        for name in seen.names() {
            stage.tally().wrote(name, seen.times);
        }
        if let Some(why) = seen.is_wrong() {
            let Move { was, state, times, .. } = &seen;
            stage.wrong(format!("{times} times {was} became {state}: {why}"));
        }
    }
    Ok(())
}

/// When the keys that expired did so, each time, in microseconds of the database's clock.
pub(super) fn expired(server: &Server) -> Result<HashMap<String, Vec<u64>>> {
    let mut expired: HashMap<_, Vec<_>> = HashMap::new();
    for line in server.sql(EXPIRED).lines() {
        let (key, at) = line.split_once('|').with_context(|| format!("no note of an expiry: {line:?}"))?;
        expired.entry(key.to_owned()).or_default().push(at.parse()?);
    }
    Ok(expired)
}

/// What was written about one key, of whichever caller, for whoever reads a failed run.
pub(super) fn notes(server: &Server, subject: &Subject) -> String {
    let key = &subject.key;
    server.sql(&format!(
        "SELECT at, route, coalesce(was, 'nothing') || ' -> ' || coalesce(state, 'nothing'), is_due FROM witness \
         WHERE key = '{key}' ORDER BY number"
    ))
}

/// Clients and the store must agree on how many keys of each kind have ended how.
pub(super) fn compare(server: &Server, stage: &Stage, ends: &[(std::sync::Arc<Subject>, End)]) {
    let mut told = BTreeMap::new();
    for (subject, end) in ends.iter().filter(|(subject, _)| subject.kind != Kind::Brief) {
        let state = match end {
            End::Completed(_) | End::CompletedUnkept => "completed",
            End::Unknown => "unknown",
            End::Never => "nowhere",
        };
        *told.entry(format!("POST /{}|{state}", subject.kind.name())).or_insert(0_u64) += 1;
    }
    let stands = server.sql(STANDS);
    let stands: BTreeMap<_, _> = stands.lines().filter_map(|line| line.rsplit_once('|')).collect();
    let stands: BTreeMap<_, _> =
        stands.into_iter().map(|(place, count)| (place.to_owned(), count.parse().unwrap_or(0))).collect();
    if stands != told {
        stage.wrong(format!("clients were told {told:?}, and the store has {stands:?}"));
    }
}

fn parsed(line: &str) -> Option<Move> {
    let mut parts = line.split('|');
    let mut next = || parts.next();
    let (was, state) = (next()?.to_owned(), next()?.to_owned());
    Some(Move { was, state, is_due: next()? == "t", times: next()?.parse().ok()? })
}

impl Move {
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
            ("unknown" | "retryable", "completed") => names.push("completed late: the late truth"),
            ("unknown", "retryable") => names.push("did not run: the late truth"),
            _ => {}
        }
        names
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
        assert_eq!(seen("unknown|completed|f|3"), (vec!["completed late: the late truth"], false));
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
