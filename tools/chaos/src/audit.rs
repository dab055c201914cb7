//! A trigger in the database that records every write of a record: what no client is told, and no gateway that is killed
//! can count.
//!
//! The trigger writes in the transaction of the write, so its row is there exactly if the write is. It records names of
//! states and not whose token wrote, so only what holds for every key is judged here: a completed record stays until it has
//! expired, and what is unknown runs only after a verdict. It alone knows when a key expired, and was reaped or used anew, and
//! when a probe settled one.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use onlyonce_testkit::engines::postgres::Server;
use onlyonce_testkit::history::{Verdict, What};

use crate::final_state::FinalState;
use crate::kind::Kind;
use crate::run::{Run, Subject};

const INSTALL: &str = "
    CREATE TABLE chaos_audit (
        number bigserial PRIMARY KEY, at timestamptz NOT NULL, route text, key text NOT NULL,
        was text, state text, is_due boolean NOT NULL, id text NOT NULL, completed_by text
    );
    CREATE FUNCTION chaos_audit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        -- Every write of a record has a new revision.
        IF TG_OP = 'UPDATE' AND OLD.revision = NEW.revision THEN
            RETURN NULL;
        END IF;
        INSERT INTO chaos_audit (at, route, key, was, state, is_due, id, completed_by) VALUES (
            clock_timestamp(), coalesce(NEW.route, OLD.route), coalesce(NEW.key, OLD.key), OLD.state, NEW.state,
            coalesce(OLD.due_at <= clock_timestamp(), false), encode(coalesce(NEW.id, OLD.id), 'hex'), NEW.completed_by
        );
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_audit AFTER INSERT OR UPDATE OR DELETE ON onlyonce_record
        FOR EACH ROW EXECUTE FUNCTION chaos_audit();
";
const TRANSITIONS: &str = "
    SELECT coalesce(was, 'nothing'), coalesce(state, 'nothing'), is_due, count(*) FROM chaos_audit GROUP BY 1, 2, 3
";
const STATES: &str =
    "SELECT route, state, count(*) FROM onlyonce_record WHERE route <> 'POST /brief' GROUP BY 1, 2";
/// A finished record past its retention, deleted or replaced by a new reservation.
const EXPIRED: &str = "
    SELECT key, (extract(epoch FROM at) * 1000000)::bigint FROM chaos_audit
    WHERE was IN ('completed', 'retryable') AND is_due AND (state IS NULL OR state = 'running') ORDER BY number
";

/// What was unknown and then settled, by its probe; or its attempt came back and said that it had not run.
const RULED: &str = "
    SELECT id, (extract(epoch FROM at) * 1000000)::bigint, state FROM chaos_audit
    WHERE was = 'unknown' AND (state = 'retryable' OR completed_by = 'probe') ORDER BY number
";

/// A transition by the names of its states, and whether the lease had lapsed or the retention was over.
struct Transition {
    was: String,
    state: String,
    is_due: bool,
    times: u64,
}

/// Creates the trigger. The tables of the store must be there.
pub(crate) fn install(server: &Server) {
    server.sql(INSTALL);
}

/// Counts the transitions, and reports those that no store should have written.
pub(crate) fn read(server: &Server, run: &Run) -> Result<()> {
    for line in server.sql(TRANSITIONS).lines() {
        let seen = parsed(line).with_context(|| format!("no note of a write: {line:?}"))?;
        for name in seen.names() {
            run.tally().wrote(name, seen.times);
        }
        if let Some(why) = seen.is_wrong() {
            let Transition { was, state, times, .. } = &seen;
            run.wrong(format!("{times} times {was} became {state}: {why}"));
        }
    }
    Ok(())
}

/// When the keys that expired did so, each time, in microseconds of the database's clock.
pub(crate) fn expired(server: &Server) -> Result<HashMap<String, Vec<u64>>> {
    let mut expired: HashMap<_, Vec<_>> = HashMap::new();
    for line in server.sql(EXPIRED).lines() {
        let (key, at) = line.split_once('|').with_context(|| format!("no note of an expiry: {line:?}"))?;
        expired.entry(key.to_owned()).or_default().push(at.parse()?);
    }
    Ok(expired)
}

/// The verdicts on each key, by its number, with the time of the database's clock.
pub(crate) fn ruled(server: &Server, run: &Run) -> Result<HashMap<usize, Vec<(u64, What)>>> {
    let mut ruled: HashMap<_, Vec<_>> = HashMap::new();
    for line in server.sql(RULED).lines() {
        let fault = || format!("no note of a verdict: {line:?}");
        let mut parts = line.split('|');
        let mut next = || parts.next().with_context(fault);
        let (id, at, state) = (next()?, next()?.parse()?, next()?);
        let seen = run.of_record(id);
        let subject =
            &seen.first().with_context(|| format!("a verdict on what the service never saw: {id}"))?.subject;
        let verdict = match state {
            "completed" => Verdict::Happened(seen.iter().find_map(|seen| seen.said.clone())),
            _ => Verdict::DidNotHappen,
        };
        run.tally().wrote(
            if state == "completed" { "settled by the probe: happened" } else { "settled: did not happen" },
            1,
        );
        ruled.entry(subject.number).or_default().push((at, What::Ruled(verdict)));
    }
    Ok(ruled)
}

/// Every write of one key, of any caller, for those who read a failed run.
pub(crate) fn notes(server: &Server, subject: &Subject) -> String {
    let key = &subject.key;
    server.sql(&format!(
        "SELECT at, route, coalesce(was, 'nothing') || ' -> ' || coalesce(state, 'nothing'), is_due FROM chaos_audit \
         WHERE key = '{key}' ORDER BY number"
    ))
}

/// Clients and the store must agree on how many keys of each kind have ended how.
pub(crate) fn compare(server: &Server, run: &Run, ends: &[(std::sync::Arc<Subject>, FinalState)]) {
    let mut told = BTreeMap::new();
    for (subject, end) in ends.iter().filter(|(subject, _)| subject.kind != Kind::Brief) {
        let state = match end {
            FinalState::Completed(_) | FinalState::CompletedUnkept => "completed",
            FinalState::Unknown => "unknown",
            FinalState::Never => "nowhere",
        };
        *told.entry(format!("POST /{}|{state}", subject.kind.name())).or_insert(0_u64) += 1;
    }
    let stands = server.sql(STATES);
    let stands: BTreeMap<_, _> = stands.lines().filter_map(|line| line.rsplit_once('|')).collect();
    let stands: BTreeMap<_, _> =
        stands.into_iter().map(|(place, count)| (place.to_owned(), count.parse().unwrap_or(0))).collect();
    if stands != told {
        run.wrong(format!("clients were told {told:?}, and the store has {stands:?}"));
    }
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
