//! Columns and back; and what no release has written is refused.

use proptest::prelude::*;

use super::*;
use crate::Attached;
use crate::conformance::random::Random;
use onlyonce_core::machine;
use onlyonce_core::record::Verdict;

const NOW: Timestamp = Timestamp::from_micros(1_762_000_000_000_000);

/// A row as a store would have it after a write at [`NOW`].
#[derive(Clone, Debug)]
struct Stored {
    id: Vec<u8>,
    scope: Vec<u8>,
    label: Option<String>,
    key: String,
    route: Option<String>,
    state: String,
    attempt: i64,
    token: Vec<u8>,
    effects: String,
    retention_us: i64,
    created_at: i64,
    began_at: i64,
    due_at: Option<i64>,
    lapses_at: Option<i64>,
    expires_at: Option<i64>,
    unknown_since: Option<i64>,
    reason: Option<String>,
    dead_letter: bool,
    completed_by: Option<String>,
    recovery_point: Option<String>,
    status: Option<i64>,
    headers: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
    rest: Vec<u8>,
    key_id: Option<Vec<u8>>,
}

impl Stored {
    fn of(draft: &Draft) -> Self {
        Self::sealed(draft, None)
    }

    fn sealed(draft: &Draft, keyring: Option<&Keyring>) -> Self {
        let id = Id::of(&draft.scope, &draft.key);
        let sealing = Sealing::of(keyring, &id, draft, &mut Attached::default());
        let columns = Columns::of(draft, sealing.as_deref());
        let stamp = |when: When| when.stamp(NOW).as_micros();
        let text = |text: Option<&str>| text.map(str::to_owned);
        Self {
            id: Id::of(&draft.scope, &draft.key).0.to_vec(),
            scope: columns.scope.to_vec(),
            label: text(columns.label),
            key: columns.key.to_owned(),
            route: text(columns.route),
            state: columns.state.to_owned(),
            attempt: columns.attempt,
            token: columns.token.to_vec(),
            effects: columns.effects.to_owned(),
            retention_us: columns.retention_us,
            created_at: stamp(columns.created_at),
            began_at: stamp(columns.began_at),
            due_at: columns.due.stamp(NOW).map(Timestamp::as_micros),
            lapses_at: columns.lapses_at.map(stamp),
            expires_at: columns.expires_at.map(stamp),
            unknown_since: columns.unknown_since.map(stamp),
            reason: text(columns.reason.as_deref()),
            dead_letter: columns.dead_letter,
            completed_by: text(columns.completed_by),
            recovery_point: text(columns.recovery_point),
            status: columns.status.map(Into::into),
            headers: columns.headers.map(Cow::into_owned),
            body: columns.body.map(<[u8]>::to_vec),
            rest: columns.rest,
            key_id: columns.key_id.map(<[u8]>::to_vec),
        }
    }

    fn row(&self) -> Row<'_> {
        Row {
            id: &self.id,
            revision: 7,
            scope: &self.scope,
            label: self.label.as_deref(),
            key: &self.key,
            route: self.route.as_deref(),
            state: &self.state,
            attempt: self.attempt,
            token: &self.token,
            effects: &self.effects,
            retention_us: self.retention_us,
            created_at: self.created_at,
            began_at: self.began_at,
            written_at: NOW.as_micros(),
            due_at: self.due_at,
            lapses_at: self.lapses_at,
            expires_at: self.expires_at,
            unknown_since: self.unknown_since,
            reason: self.reason.as_deref(),
            dead_letter: self.dead_letter,
            completed_by: self.completed_by.as_deref(),
            recovery_point: self.recovery_point.as_deref(),
            status: self.status,
            headers: self.headers.as_deref(),
            body: self.body.as_deref(),
            rest: &self.rest,
            key_id: self.key_id.as_deref(),
        }
    }
}

/// A draft in a state that `is_wanted` by name.
fn draft(wanted: StateName, has_response: bool) -> Box<Draft> {
    let fits = |draft: &Draft| match &draft.state {
        State::Completed { response, .. } => response.is_some() == has_response,
        State::Pending { .. } | State::Running { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            true
        }
    };
    let mut drafts = (0..).map(|seed| Random::new(seed).draft());
    drafts.find(|draft| draft.state.name() == wanted && fits(draft)).expect("there are enough")
}

proptest! {
    /// P01, P07
    #[test]
    fn any_record_is_its_columns_and_back(seed: u64) {
        let draft = Random::new(seed).draft();
        let stored = Stored::of(&draft);
        prop_assert_eq!(stored.row().record(None).unwrap(), draft.stamp(NOW));
        stored.row().check(None).unwrap();
    }

    /// L05: with its key a record is read as it was written; without it, its columns say when it expires and nothing is served.
    #[test]
    fn any_record_is_its_encrypted_columns_and_back(seed: u64) {
        let draft = Random::new(seed).draft();
        let keyring = Keyring::new([[7; 32]]).unwrap();
        let stored = Stored::sealed(&draft, Some(&keyring));
        let record = draft.stamp(NOW);
        prop_assert_eq!(&stored.row().record(Some(&keyring)).unwrap(), &record);
        stored.row().check(None).unwrap();
        let other = Keyring::new([[8; 32]]).unwrap();
        for keyring in [None, Some(&other)] {
            match stored.row().record(keyring) {
                Ok(read) => prop_assert_eq!(&read, &record, "nothing of it is encrypted"),
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Undecryptable);
                    prop_assert!(error.to_string().contains(&Keyring::new([[7; 32]]).unwrap().first().to_string()));
                    let unreadable = error.unreadable().unwrap();
                    prop_assert_eq!(unreadable.record.state.name(), record.state.name());
                    prop_assert_eq!(machine::may_reap(&unreadable.record, NOW), machine::may_reap(&record, NOW));
                    let stored = machine::stored(&record).map(|(response, _)| (response.status, response.body.len()));
                    prop_assert_eq!(unreadable.status.zip(unreadable.body_bytes), stored);
                }
            }
        }
    }
}

/// P07, E09: what another program wrote wrongly is refused, with the record's id and the column.
#[test]
fn columns_that_contradict_each_other_are_refused_by_name() {
    type Change = fn(&mut Stored);
    let cases: [(StateName, Change, &str); 21] = [
        (StateName::Running, |row| row.state = "paused".into(), "column \"state\" is \"paused\""),
        (
            StateName::Running,
            |row| row.state = "completed".into(),
            "column \"lapses_at\", which no completed",
        ),
        (
            StateName::Running,
            |row| row.lapses_at = None,
            "\"lapses_at\", which every running record has, is null",
        ),
        (
            StateName::Running,
            |row| row.expires_at = Some(1),
            "\"expires_at\", which no running record has, is set",
        ),
        (StateName::Running, |row| row.status = Some(201), "\"status\", which no running record has, is set"),
        (StateName::Running, |row| row.dead_letter = true, "\"dead_letter\", which no running record has"),
        (
            StateName::Running,
            |row| row.key.push('x'),
            "columns \"scope\" and \"key\" are not those of its id",
        ),
        (StateName::Running, |row| row.scope.truncate(31), "column \"scope\" has 31 bytes instead of 32"),
        (StateName::Running, |row| row.token.clear(), "column \"token\" has 0 bytes instead of 16"),
        (StateName::Running, |row| row.effects = "some".into(), "column \"effects\" is \"some\""),
        (StateName::Running, |row| row.attempt = -1, "column \"attempt\" is -1, which is out of range"),
        (StateName::Running, |row| row.retention_us = -1, "column \"retention_us\" is negative"),
        (StateName::Running, |row| row.rest[0] = 9, "column \"rest\" has version 9"),
        (StateName::Unknown, |row| row.reason = None, "\"reason\", which every unknown record has, is null"),
        (StateName::Unknown, |row| row.reason = Some("x".into()), "column \"reason\" is \"x\""),
        (
            StateName::Unknown,
            |row| row.unknown_since = None,
            "\"unknown_since\", which every unknown record has",
        ),
        (
            StateName::Completed,
            |row| row.completed_by = None,
            "\"completed_by\", which every completed record has",
        ),
        (StateName::Completed, |row| row.body = None, "some are null and some are not"),
        (
            StateName::Completed,
            |row| row.status = Some(70_000),
            "column \"status\" is 70000, which is out of range",
        ),
        (StateName::Completed, |row| row.headers = Some(b"x".to_vec()), "does not end with a line feed"),
        (StateName::Completed, |row| row.headers = Some(b"a b: c\n".to_vec()), "has the line \"a b: c\""),
    ];
    for (state, change, says) in cases {
        let mut stored = Stored::of(&draft(state, true));
        change(&mut stored);
        let error = stored.row().record(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(says), "{error}\n  does not say {says}");
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        let id: String = stored.id.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(error.to_string().contains(&id), "{error}");
    }
}

/// P07: a row that would never be found is told by a check, though its record can be read.
#[test]
fn a_row_that_is_due_at_the_wrong_time_does_not_pass_a_check() {
    let mut stored = Stored::of(&draft(StateName::Running, true));
    stored.due_at = None;
    stored.row().record(None).unwrap();
    let error = stored.row().check(None).unwrap_err();
    assert!(error.to_string().contains("column \"due_at\" is not when"), "{error}");
}

/// W09: a completion by plain SQL leaves `rest` as it is; what was heard while the attempt ran no longer counts.
#[test]
fn a_row_completed_by_its_columns_alone_is_a_completed_record() {
    let before = (0..)
        .map(|seed| Random::new(seed).draft())
        .find(|draft| draft.evidence.is_some() && draft.state.name() == StateName::Unknown);
    let before = before.expect("there are enough");
    let mut row = Stored::of(&before);
    let expires_at = NOW.plus(Duration::from_micros(row.retention_us.unsigned_abs()));
    row.state = "completed".into();
    (row.lapses_at, row.unknown_since, row.reason, row.dead_letter) = (None, None, None, false);
    (row.due_at, row.expires_at) = (Some(expires_at.as_micros()), Some(expires_at.as_micros()));
    row.completed_by = Some("attempt".into());
    row.status = Some(201);
    row.headers = Some(b"content-type: text/plain\nlink: <a>\nlink: <b>\n".to_vec());
    row.body = Some(b"done".to_vec());
    let record = row.row().record(None).unwrap();
    row.row().check(None).unwrap();
    let State::Completed { response: Some(response), by: Source::Attempt, expires_at: told } = &record.state
    else {
        panic!("{:?}", record.state)
    };
    assert_eq!((response.status, &response.body[..], *told), (201, &b"done"[..], expires_at));
    let headers: Vec<_> =
        response.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(headers, [("content-type", &b"text/plain"[..]), ("link", b"<a>"), ("link", b"<b>")]);
    assert_eq!(record.evidence, None);
    assert_eq!((&record.fingerprint, record.token), (&before.fingerprint, before.token));
}

fn sealed_answer() -> (Keyring, Stored) {
    let keyring = Keyring::new([[7; 32]]).unwrap();
    let stored = Stored::sealed(&draft(StateName::Completed, true), Some(&keyring));
    (keyring, stored)
}

/// L05: an answer that was changed, or moved to another column or row, is refused and never served.
#[test]
fn an_encrypted_answer_that_was_altered_or_moved_is_corrupt() {
    let (keyring, other) = sealed_answer();
    type Change = fn(&mut Stored, &Stored);
    let changes: [Change; 6] = [
        |row, _| *row.body.as_mut().unwrap().last_mut().unwrap() ^= 1,
        |row, _| row.headers.as_mut().unwrap()[40] ^= 1,
        |row, _| row.headers.clone_from(&row.body),
        |row, _| row.body.as_mut().unwrap().truncate(20),
        |row, other| row.body.clone_from(&other.body),
        |row, _| row.key_id = None,
    ];
    for change in changes {
        let elsewhere = (0..).map(|seed| Random::new(seed).draft()).find(|draft| {
            machine::stored(&draft.clone().stamp(NOW)).is_some()
                && Id::of(&draft.scope, &draft.key).0 != other.id[..]
        });
        let mut row = Stored::sealed(&elsewhere.unwrap(), Some(&keyring));
        change(&mut row, &other);
        let error = row.row().record(Some(&keyring)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// L05, W09: what SQL stores stands in clear and is marked so; evidence that was encrypted before no longer counts.
#[test]
fn a_row_completed_by_sql_is_read_without_any_key() {
    let happened = |draft: &Draft| {
        let verdict = draft.evidence.as_deref().map(|evidence| &evidence.verdict);
        matches!(verdict, Some(Verdict::Happened(Some(_)))) && draft.progress.found.is_none()
    };
    let before = (0..)
        .map(|seed| Random::new(seed).draft())
        .find(|draft| happened(draft) && draft.state.name() == StateName::Running);
    let (keyring, completed) = sealed_answer();
    let mut row = Stored::sealed(&before.unwrap(), Some(&keyring));
    assert_eq!(row.row().record(None).unwrap_err().kind(), ErrorKind::Undecryptable);
    (row.state, row.lapses_at) = ("completed".into(), None);
    (row.due_at, row.expires_at) = (completed.due_at, completed.expires_at);
    (row.completed_by, row.status, row.key_id) = (Some("attempt".into()), Some(201), None);
    (row.headers, row.body) = (Some(Vec::new()), Some(b"done".to_vec()));
    let record = row.row().record(None).unwrap();
    assert_eq!(machine::stored(&record).unwrap().0.body, "done");
}
