//! Everything we say to the server about records and messages: one statement a verb, written out.
//!
//! 1. Each is a transaction of its own: one round trip, committed when it answers.
//! 2. The clock is the server's. A write is stamped with the moment its statement came (`statement_timestamp()`): one for
//!    the whole statement, and nothing to join with; a look tells the moment it reads (`clock_timestamp()`). Neither is
//!    `now()`, which is the beginning of a transaction. No record is stamped before its last stamp: after a failover the
//!    new server's clock may be behind. As a sub-select a moment is a value for the planner, so that an index can be
//!    searched by it.
//! 3. A statement sees the database as it was when it began. So what another one wrote meanwhile it neither overwrites
//!    nor shows; where neither `written` nor the row as it stands answers, the caller looks again.
//! 4. Only what CockroachDB, YugabyteDB and Citus know too; `cargo xtask tidy` lists what is not, and why.

use std::time::Duration;

/// How long after it was written a record is looked at for the first time, by anybody: nearly all are completed by then,
/// and told so by the node that wrote them.
pub(super) const FIRST_LOOK: Duration = Duration::from_secs(10);

/// What can be said. Its number is its place among what a connection has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Load,
    Confirm,
    LoadMany,
    Epoch,
    RaiseEpoch,
    Insert,
    Update,
    InsertInFull,
    UpdateInFull,
    Batch,
    CarefulBatch,
    ById,
    ByState,
    Listed,
    Due,
    LoadDue,
    ListAnew,
    ListDone,
    LoneIsDue,
    ListLone,
    Count,
    Delete,
    DeleteAndKeep,
    Archived,
    Claim,
    Deliver,
    Retry,
    Bury,
    DeadLetters,
}

impl Verb {
    pub(super) const ALL: [Self; 29] = [
        Self::Load,
        Self::Confirm,
        Self::LoadMany,
        Self::Epoch,
        Self::RaiseEpoch,
        Self::Insert,
        Self::Update,
        Self::InsertInFull,
        Self::UpdateInFull,
        Self::Batch,
        Self::CarefulBatch,
        Self::ById,
        Self::ByState,
        Self::Listed,
        Self::Due,
        Self::LoadDue,
        Self::ListAnew,
        Self::ListDone,
        Self::LoneIsDue,
        Self::ListLone,
        Self::Count,
        Self::Delete,
        Self::DeleteAndKeep,
        Self::Archived,
        Self::Claim,
        Self::Deliver,
        Self::Retry,
        Self::Bury,
        Self::DeadLetters,
    ];
}

/// The statements on the tables of one schema.
pub(super) struct Statements {
    by_verb: Vec<String>,
}

impl Statements {
    /// `schema` is quoted.
    pub(super) fn new(schema: &str) -> Self {
        let filled = |verb| {
            let first_look = format!("interval '{} seconds'", FIRST_LOOK.as_secs());
            text(verb).replace("{schema}", schema).replace("{first_look}", &first_look)
        };
        Self { by_verb: Verb::ALL.into_iter().map(filled).collect() }
    }

    pub(super) fn sql(&self, verb: Verb) -> &str {
        &self.by_verb[verb as usize]
    }
}

fn text(verb: Verb) -> String {
    match verb {
        Verb::Load => LOAD.to_owned(),
        Verb::Confirm => CONFIRM.to_owned(),
        Verb::LoadMany => LOAD_MANY.to_owned(),
        Verb::Epoch => EPOCH.to_owned(),
        Verb::RaiseEpoch => RAISE_EPOCH.to_owned(),
        Verb::Insert => INSERT.to_owned(),
        Verb::Update => UPDATE.to_owned(),
        Verb::InsertInFull => {
            let beside = beside_one("$11", ["$12", "$13", "$14"]);
            format!("{INSERT_IN_FULL},{beside} {INSERTED}")
        }
        Verb::UpdateInFull => {
            let beside = beside_one("$10", ["$11", "$12", "$13"]);
            format!("{UPDATE_IN_FULL},{beside} {UPDATED}")
        }
        Verb::Batch => BATCH.replace("{updates}", &format!("{UPDATES} locked {UPDATED_COLUMNS}")),
        Verb::CarefulBatch => {
            let given = format!("{UPDATES} given {UPDATED_COLUMNS}");
            BATCH.replace("{updates}", &UNHELD.replace("{given}", &given))
        }
        Verb::ById => BY_ID.to_owned(),
        Verb::ByState => BY_STATE.to_owned(),
        Verb::Listed => LISTED.to_owned(),
        Verb::Due => DUE.to_owned(),
        Verb::LoadDue => LOAD_DUE.to_owned(),
        Verb::ListAnew => format!("{TAKEN},{FOUND},{} SELECT count(*) FROM taken", listed_anew("found")),
        Verb::ListDone => LIST_DONE.to_owned(),
        Verb::LoneIsDue => LONE_IS_DUE.to_owned(),
        Verb::ListLone => format!("{LONE},{} SELECT count(*) FROM lone", listed_anew("lone")),
        Verb::Count => COUNT.to_owned(),
        Verb::Delete => format!("{DELETE} {DELETED}"),
        Verb::DeleteAndKeep => format!("{DELETE}{KEEP} {DELETED}"),
        Verb::Archived => ARCHIVED.to_owned(),
        Verb::Claim => CLAIM.to_owned(),
        Verb::Deliver => DELIVER.to_owned(),
        Verb::Retry => RETRY.to_owned(),
        Verb::Bury => BURY.to_owned(),
        Verb::DeadLetters => DEAD_LETTERS.to_owned(),
    }
}

/// Relies on the primary key.
const LOAD: &str = "
    SELECT revision, written_at, record, greatest(clock_timestamp(), written_at)
    FROM {schema}.onlyonce_record WHERE id = $1";

/// Relies on the primary key. A look that is a commit: what it shows, a standby has confirmed when it answers.
const CONFIRM: &str = "
    UPDATE {schema}.onlyonce_record SET revision = revision WHERE id = $1
    RETURNING revision, written_at, record, greatest(clock_timestamp(), written_at)";

/// Many looks at once. Relies on the primary key, which is searched for each id. Of a record that is longer than `$2`
/// bytes only its place is held: it is looked at alone, so that no answer holds a hundred large bodies.
///
/// ids, bytes
const LOAD_MANY: &str = "
    SELECT id, revision, written_at, CASE WHEN octet_length(record) <= $2::integer THEN record END,
           greatest(clock_timestamp(), written_at)
    FROM {schema}.onlyonce_record WHERE id = ANY($1::bytea[])";

/// The table has one row. With it comes what the schema asks of a release by now: a node that runs is told when it has
/// become too old.
const EPOCH: &str = "
    SELECT epoch, (SELECT max(needs) FROM {schema}.onlyonce_migration)
    FROM {schema}.onlyonce_epoch WHERE one = 1";
const RAISE_EPOCH: &str =
    "UPDATE {schema}.onlyonce_epoch SET epoch = epoch + 1 WHERE one = 1 RETURNING epoch";

/// One record, and nothing else: what a lone caller waits for. Relies on the primary key: where the id is taken, nothing is
/// written. Where somebody inserts it right now, it waits for them; a row that is merely locked it does not wait for.
/// It lists the record itself (due.rs): a row of the list would be a third of the work.
///
/// id, revision, due after, state, scope, label, key, route, record, looked at after
const INSERT: &str = "
    INSERT INTO {schema}.onlyonce_record
        (id, revision, written_at, due_at, state, scope, label, key, route, record, look_at)
    VALUES ($1, $2, statement_timestamp(), statement_timestamp() + $3::interval,
            $4, $5, $6, $7, $8, $9, statement_timestamp() + $10::interval)
    ON CONFLICT (id) DO NOTHING
    RETURNING NULL::bigint, written_at";

/// The same for a record that is there and stays listed where it is. Relies on the primary key, and on the row's lock: what it
/// compares is what it writes. Scope and key are the id's, and stay. It does not show what it was lost to: that is rare
/// where a key has one attempt, and takes a look of its own. Where the clock is behind the last stamp it writes nothing.
///
/// id, expected revision, revision, due after, state, label, route, record
const UPDATE: &str = "
    UPDATE {schema}.onlyonce_record
    SET revision = $3, written_at = statement_timestamp(), due_at = statement_timestamp() + $4::interval,
        state = $5, label = $6, route = $7, record = $8
    WHERE id = $1 AND revision = $2 AND written_at <= statement_timestamp()
    RETURNING NULL::bigint, written_at";

/// The same with all there may be to it: a due time that is a moment, a row of the list, messages; and it shows what it was
/// lost to.
///
/// id, revision, due at, due after, state, scope, label, key, route, record; and of what is written beside it
const INSERT_IN_FULL: &str = "
    WITH written AS (
        INSERT INTO {schema}.onlyonce_record
            (id, revision, written_at, due_at, state, scope, label, key, route, record)
        VALUES ($1, $2, statement_timestamp(), least($3::timestamptz, statement_timestamp() + $4::interval),
                $5, $6, $7, $8, $9, $10)
        ON CONFLICT (id) DO NOTHING
        RETURNING written_at, due_at
    )";
const INSERTED: &str = "
    SELECT NULL::bigint, written_at, NULL::bytea, NULL::timestamptz FROM written
    UNION ALL
    SELECT revision, written_at, record, greatest(clock_timestamp(), written_at)
    FROM {schema}.onlyonce_record WHERE id = $1";

/// id, expected revision, revision, due at, due after, state, label, route, record; and of what is written beside it
const UPDATE_IN_FULL: &str = "
    WITH written AS (
        UPDATE {schema}.onlyonce_record AS record
        SET revision = $3, written_at = greatest(statement_timestamp(), record.written_at),
            due_at = least($4::timestamptz, greatest(statement_timestamp(), record.written_at) + $5::interval),
            state = $6, label = $7, route = $8, record = $9
        WHERE record.id = $1 AND record.revision = $2
        RETURNING record.written_at, record.due_at
    )";
const UPDATED: &str = "
    SELECT NULL::bigint, written_at, NULL::bytea, NULL::timestamptz FROM written
    UNION ALL
    SELECT revision, written_at, record, greatest(clock_timestamp(), written_at)
    FROM {schema}.onlyonce_record WHERE id = $1 AND revision <> $2";

/// With the record or not at all: when it is looked at for the first time (due.rs), under a number of its own; and its
/// messages. Relies on their unique keys: a message that is there already is the same message, and is kept once.
fn beside_one(number: &str, [keys, destinations, payloads]: [&str; 3]) -> String {
    format!(
        "
    listed AS (
        INSERT INTO {{schema}}.onlyonce_due (state, due_at, number, ids)
        SELECT 'new', least(due_at, written_at + {{first_look}}), {number}::bigint, ARRAY[$1::bytea] FROM written
    ),
    letters AS (
        INSERT INTO {{schema}}.onlyonce_outbox (key, destination, payload, due_at)
        SELECT message.key, message.destination, message.payload, written.written_at
        FROM written, unnest({keys}::text[], {destinations}::text[], {payloads}::bytea[])
            WITH ORDINALITY AS message (key, destination, payload, place)
        ORDER BY message.place
        ON CONFLICT (key) DO NOTHING
    )"
    )
}

/// Many writes at once. It waits for a row that somebody holds, as long as the lock time-out allows, and then nothing of it
/// is written: who meets one goes on with the careful one. Relies on the primary key, and on the rows' locks, taken in the
/// order of ids, which is the order they are given in.
/// Where everything was written, at the moment the statement came, one row without an id says so. Else each that was has a
/// row, and what stands in the way is looked up. A row that stands there with a revision that one of the updates expects
/// answers nothing: it is that update's own, and was skipped, or it goes alone for nothing.
///
/// As arrays, of inserts: id, revision, key, record, due at, due after, state, scope, label, route; the last six again, each
/// as it is throughout; of updates: id, expected revision, revision, record, due at, due after, state, label, route,
/// whether it is listed; the last six again; and the number that all are listed under
const BATCH: &str = "
    WITH inserted AS (
        INSERT INTO {schema}.onlyonce_record
            (id, revision, written_at, key, record, due_at, state, scope, label, route)
        SELECT id, revision, statement_timestamp(), key, record,
               least(coalesce(due_at, $11::timestamptz),
                     statement_timestamp() + coalesce(due_after, $12::interval)),
               coalesce(state, $13::text), coalesce(scope, $14::bytea),
               coalesce(label, $15::text), coalesce(route, $16::text)
        FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::bytea[], $5::timestamptz[], $6::interval[],
                    $7::text[], $8::bytea[], $9::text[], $10::text[])
            AS given (id, revision, key, record, due_at, due_after, state, scope, label, route)
        ON CONFLICT (id) DO NOTHING
        RETURNING id, written_at, due_at
    ),
    updated AS (
        UPDATE {schema}.onlyonce_record AS record
        SET revision = locked.revision, written_at = greatest(statement_timestamp(), record.written_at),
            record = locked.record,
            due_at = least(coalesce(locked.due_at, $27::timestamptz),
                           greatest(statement_timestamp(), record.written_at)
                               + coalesce(locked.due_after, $28::interval)),
            state = coalesce(locked.state, $29::text),
            label = coalesce(locked.label, $30::text), route = coalesce(locked.route, $31::text)
        FROM {updates}
        WHERE record.id = locked.id AND record.revision = locked.expected
        RETURNING record.id, record.written_at, record.due_at,
                  coalesce(locked.is_listed, $32::boolean) AS is_listed
    ),
    told AS (
        SELECT count(*) FILTER (WHERE written_at = statement_timestamp())
                   = cardinality($1::bytea[]) + cardinality($17::bytea[]) AS is_all,
               array_agg(id) FILTER (WHERE is_listed) AS ids,
               min(due_at) FILTER (WHERE is_listed) AS due_at
        FROM (SELECT id, written_at, due_at, true AS is_listed FROM inserted
              UNION ALL
              SELECT id, written_at, due_at, is_listed FROM updated) AS written
    ),
    listed AS (
        INSERT INTO {schema}.onlyonce_due (state, due_at, number, ids)
        SELECT 'new', least(due_at, statement_timestamp() + {first_look}), $33::bigint, ids
        FROM told WHERE ids IS NOT NULL
    )
    SELECT NULL::bytea, NULL::bigint, statement_timestamp(), NULL::bytea, NULL::timestamptz FROM told WHERE is_all
    UNION ALL
    SELECT id, NULL::bigint, written_at, NULL::bytea, NULL::timestamptz FROM inserted
    WHERE NOT (SELECT is_all FROM told)
    UNION ALL
    SELECT id, NULL::bigint, written_at, NULL::bytea, NULL::timestamptz FROM updated
    WHERE NOT (SELECT is_all FROM told)
    UNION ALL
    SELECT record.id, record.revision, record.written_at, record.record,
           greatest(clock_timestamp(), record.written_at)
    FROM unnest($1::bytea[] || $17::bytea[]) AS given (id)
        JOIN {schema}.onlyonce_record AS record ON record.id = given.id
    WHERE NOT (SELECT is_all FROM told)
      AND record.revision <> ALL ($18::bigint[])";

/// What is to be updated, as it is given.
const UPDATES: &str = "
            unnest($17::bytea[], $18::bigint[], $19::bigint[], $20::bytea[], $21::timestamptz[], $22::interval[],
                   $23::text[], $24::text[], $25::text[], $26::boolean[]) AS";
const UPDATED_COLUMNS: &str =
    "(id, expected, revision, record, due_at, due_after, state, label, route, is_listed)";
/// The same without what somebody holds: that answers nothing, and goes alone. Each row is looked up, and its lock
/// written down, once more for it: a tenth of the server's work for a batch.
const UNHELD: &str = "(
            SELECT given.* FROM {given} JOIN {schema}.onlyonce_record AS record
                ON record.id = given.id AND record.revision = given.expected
            FOR UPDATE OF record SKIP LOCKED
        ) AS locked";

/// Relies on the primary key, which is read in its order from the cursor on.
///
/// after id, scope, limit, state
const BY_ID: &str = "
    SELECT id, revision, written_at, record, greatest(clock_timestamp(), written_at), due_at
    FROM {schema}.onlyonce_record
    WHERE id > $1 AND ($2::bytea IS NULL OR scope = $2) AND ($4::text IS NULL OR state = $4)
    ORDER BY id LIMIT $3";

/// Relies on the list of what is due, on the index of what lists itself, and on the primary key. For states that few
/// records are in: those are sorted.
///
/// state, after id, scope, limit
const BY_STATE: &str = "
    WITH few AS MATERIALIZED (
        SELECT record.id
        FROM {schema}.onlyonce_due AS due CROSS JOIN LATERAL unnest(due.ids) AS listed (id)
            JOIN {schema}.onlyonce_record AS record ON record.id = listed.id
        WHERE due.state IN ($1, 'new') AND listed.id > $2
          AND record.state = $1 AND ($3::bytea IS NULL OR record.scope = $3)
        UNION
        SELECT id FROM {schema}.onlyonce_record
        WHERE look_at IS NOT NULL AND id > $2 AND state = $1 AND ($3::bytea IS NULL OR scope = $3)
        ORDER BY id LIMIT $4
    )
    SELECT record.id, record.revision, record.written_at, record.record,
           greatest(clock_timestamp(), record.written_at), record.due_at
    FROM few JOIN {schema}.onlyonce_record AS record ON record.id = few.id
    WHERE record.state = $1
    ORDER BY record.id";

/// Relies on the list's primary key, read in its order from a place on.
///
/// state, after due time, after number, limit
const LISTED: &str = "
    SELECT due_at, number, ids FROM {schema}.onlyonce_due
    WHERE state = $1 AND due_at <= (SELECT clock_timestamp())
      AND due_at >= coalesce($2::timestamptz, '-infinity') AND ($2::timestamptz IS NULL OR due_at > $2 OR number > $3)
    ORDER BY due_at, number LIMIT $4";

/// Relies on the primary key: those of the ids that are in this state and due, and whether they are of the scope.
///
/// ids, state, scope
const DUE: &str = "
    SELECT id, due_at, ($3::bytea IS NULL OR scope = $3) FROM {schema}.onlyonce_record
    WHERE id = ANY($1::bytea[]) AND state = $2 AND due_at <= (SELECT clock_timestamp())";

/// The same with the records, for several states.
///
/// ids, states
const LOAD_DUE: &str = "
    SELECT id, revision, written_at, record, greatest(clock_timestamp(), written_at), due_at
    FROM {schema}.onlyonce_record
    WHERE id = ANY($1::bytea[]) AND state = ANY($2::text[]) AND due_at <= (SELECT clock_timestamp())";

/// Lists the records of some rows anew, each where it stands now; those that are gone no longer. Relies on both primary
/// keys; rows that somebody else is at are left to them. A record that changes meanwhile is listed by that change, or is
/// completed and found where it was listed here.
///
/// The rows lie beside each other: they are read as a stretch of the list, not joined with. How many are new right now no
/// statistics know, and a join would be planned for one.
///
/// state, first due time, last due time, numbers
const TAKEN: &str = "
    WITH held AS MATERIALIZED (
        SELECT number FROM {schema}.onlyonce_due
        WHERE state = $1 AND due_at >= $2 AND due_at <= $3 AND number = ANY($4::bigint[])
        FOR UPDATE SKIP LOCKED
    ),
    taken AS (
        DELETE FROM {schema}.onlyonce_due
        WHERE state = $1 AND due_at >= $2 AND due_at <= $3 AND number IN (SELECT number FROM held)
        RETURNING ids
    )";
const FOUND: &str = "
    found AS (
        SELECT record.id, record.state, record.due_at
        FROM (SELECT DISTINCT listed.id FROM taken CROSS JOIN LATERAL unnest(taken.ids) AS listed (id)) AS listed
            JOIN {schema}.onlyonce_record AS record ON record.id = listed.id
    )";

/// A row where a record that lists itself is due. Relies on the index of those, read in its order: the server would think
/// that every third record is due, and read the table for the first.
const LONE_IS_DUE: &str = "
    SELECT 1 FROM {schema}.onlyonce_record
    WHERE look_at <= (SELECT clock_timestamp()) ORDER BY look_at LIMIT 1";

/// Lists records that have listed themselves, and no longer do. Relies on the index of those, read in its order; what
/// somebody holds is left to them, and to the next time.
///
/// limit
const LONE: &str = "
    WITH held AS MATERIALIZED (
        SELECT id FROM {schema}.onlyonce_record
        WHERE look_at <= (SELECT clock_timestamp())
        ORDER BY look_at LIMIT $1
        FOR UPDATE SKIP LOCKED
    ),
    lone AS (
        UPDATE {schema}.onlyonce_record AS record SET look_at = NULL
        FROM held WHERE record.id = held.id
        RETURNING record.id, record.state, record.due_at
    )";

/// Rows of the list for these records. What is never due is looked at again in an hour.
fn listed_anew(records: &str) -> String {
    format!(
        "
    placed AS (
        SELECT id, state, due_at,
               row_number() OVER (PARTITION BY state, date_trunc('minute', due_at) ORDER BY due_at) AS place
        FROM (
            SELECT id, state, coalesce(due_at, clock_timestamp() + interval '1 hour') AS due_at FROM {records}
        ) AS record
    ),
    again AS (
        INSERT INTO {{schema}}.onlyonce_due (state, due_at, ids)
        SELECT state, min(due_at), array_agg(id) FROM placed
        GROUP BY state, date_trunc('minute', due_at), place - place % 48
    )"
    )
}

/// New rows, all of whose records are completed, are due when the first of those expires. A stretch of the list, as above.
///
/// first due time, last due time, numbers, expiry
const LIST_DONE: &str = "
    UPDATE {schema}.onlyonce_due SET state = 'completed', due_at = $4
    WHERE state = 'new' AND due_at >= $1 AND due_at <= $2 AND number = ANY($3::bigint[])";

/// All that is not completed is listed; the rest is completed, and only counted.
const COUNT: &str = "
    WITH listed AS (
        SELECT record.id, record.state
        FROM {schema}.onlyonce_due AS due CROSS JOIN LATERAL unnest(due.ids) AS listed (id)
            JOIN {schema}.onlyonce_record AS record ON record.id = listed.id
        WHERE due.state IN ('new', 'pending', 'running', 'retryable', 'unknown') AND record.state <> 'completed'
        UNION
        SELECT id, state FROM {schema}.onlyonce_record WHERE look_at IS NOT NULL AND state <> 'completed'
    ),
    open AS (SELECT state, count(*) AS records FROM listed GROUP BY state)
    SELECT state, records FROM open
    UNION ALL
    SELECT 'completed', (SELECT count(*) FROM {schema}.onlyonce_record)
                        - coalesce((SELECT sum(records) FROM open), 0)::bigint";

/// Deletes the very rows that were judged: a revision never comes back. Relies on the primary key; a row that somebody
/// has locked is not waited for.
///
/// ids, revisions
const DELETE: &str = "
    WITH doomed AS MATERIALIZED (
        SELECT record.id, record.revision
        FROM unnest($1::bytea[], $2::bigint[]) AS judged (id, revision)
        JOIN {schema}.onlyonce_record AS record
            ON record.id = judged.id AND record.revision = judged.revision
        ORDER BY record.id
        FOR UPDATE OF record SKIP LOCKED
    ),
    deleted AS (
        DELETE FROM {schema}.onlyonce_record AS record USING doomed
        WHERE record.id = doomed.id AND record.revision = doomed.revision
        RETURNING record.*
    )";
const KEEP: &str = ",
    kept AS (
        INSERT INTO {schema}.onlyonce_archive
            (archived_at, id, revision, written_at, state, scope, label, key, route, record)
        SELECT clock_timestamp(), id, revision, written_at, state, scope, label, key, route, record FROM deleted
    )";
const DELETED: &str = "SELECT count(*) FROM deleted";

/// Relies on the archive's index over ids.
///
/// id, limit
const ARCHIVED: &str = "
    SELECT id, revision, written_at, record, greatest(clock_timestamp(), written_at), NULL::timestamptz
    FROM {schema}.onlyonce_archive WHERE id = $1 ORDER BY number DESC LIMIT $2";

/// Relies on the messages' index by due time; what another relay claims right now is skipped.
///
/// token, lease, limit
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT number, due_at FROM {schema}.onlyonce_outbox
        WHERE due_at <= (SELECT clock_timestamp())
        ORDER BY due_at, number LIMIT $3
        FOR UPDATE SKIP LOCKED
    ),
    claimed AS (
        UPDATE {schema}.onlyonce_outbox AS message
        SET token = $1, delivery = delivery + 1,
            due_at = clock_timestamp() + $2::interval
        FROM due WHERE message.number = due.number
        RETURNING due.due_at AS was_due_at, message.number, message.key, message.destination,
                  message.payload, message.delivery
    )
    SELECT key, destination, payload, delivery FROM claimed ORDER BY was_due_at, number";

/// Relies on the messages' unique keys, and so do the next two. A claim that has lapsed still settles while nobody
/// else has claimed the message: it brings the truth.
///
/// key, token
const DELIVER: &str = "
    DELETE FROM {schema}.onlyonce_outbox WHERE key = $1 AND token = $2 RETURNING number";

/// key, token, pause, error
const RETRY: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET token = NULL, due_at = clock_timestamp() + $3::interval, errors = errors || $4::text
    WHERE key = $1 AND token = $2 RETURNING number";

/// key, token, error
const BURY: &str = "
    UPDATE {schema}.onlyonce_outbox SET token = NULL, due_at = NULL, errors = errors || $3::text
    WHERE key = $1 AND token = $2 RETURNING number";

/// Relies on the messages' index by due time, where dead letters stand together.
const DEAD_LETTERS: &str = "
    SELECT key, destination, payload, errors FROM {schema}.onlyonce_outbox
    WHERE due_at IS NULL ORDER BY number LIMIT $1";
