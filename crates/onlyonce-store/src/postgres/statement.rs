//! Every statement about records and messages: one for each verb, written out.
//!
//! 1. Each is a transaction of its own: one round trip, committed when it answers. A batch with inserts and updates is two
//!    statements in one transaction (`connection.rs`).
//! 2. The clock is the server's. A write is stamped with `statement_timestamp()`: one moment for the whole statement. A read
//!    returns `clock_timestamp()`. Neither is `now()`, which is the start of the transaction. A record's stamp never
//!    decreases, even if the clock of a new primary is behind. In a sub-select the moment is a constant for the planner, so
//!    that an index can be searched by it.
//! 3. A statement sees a snapshot from its start. What is committed meanwhile it neither overwrites nor returns. If a write
//!    returns neither result, the caller reads again.
//! 4. No statement modifies one table twice, and none uses what only PostgreSQL knows; `cargo xtask tidy` has the list.

use crate::audit::table;
use crate::sql::COLUMNS;

/// The statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Load,
    LoadMany,
    Confirm,
    Insert,
    Update,
    InsertMany,
    UpdateMany,
    Epoch,
    RaiseEpoch,
    ById,
    ExaminedById,
    OfStates,
    Due,
    UnknownSince,
    ExaminedUnknown,
    PendingSince,
    ExaminedPending,
    Archive,
    ExaminedArchive,
    Count,
    CountFew,
    AliveOfScope,
    Alive,
    Delete,
    DeleteAndKeep,
    Erase,
    EraseArchived,
    Archived,
    Results,
    AddResult,
    DropResults,
    Request,
    CountRequests,
    PutRequest,
    DropRequest,
    PutRequests,
    DropRequests,
    Note,
    Log,
    ExaminedLog,
    DeleteEntries,
    BlankEntries,
    Send,
    Claim,
    Deliver,
    DeliverMany,
    Retry,
    Bury,
    Wake,
    PassDead,
    Messages,
    MessagesByNumber,
    MessagesDead,
    MessagesByFirstDue,
    MessagesDelivered,
    Payload,
    Redrive,
    Discard,
    Prune,
    CountMessages,
    OldestMessage,
    Settings,
}

impl Verb {
    /// The SQL for a schema, whose name is already quoted.
    pub(super) fn sql(self, schema: &str) -> String {
        let sql = match self {
            Self::Load => LOAD.to_owned(),
            Self::LoadMany => LOAD_MANY.to_owned(),
            Self::Confirm => CONFIRM.to_owned(),
            Self::Insert => self.filled(INSERT, |number, _, kind| format!("${number}::{kind}")),
            Self::Update => self.filled(UPDATE, |number, _, kind| format!("${number}::{kind}")),
            Self::InsertMany => self.filled(INSERT_MANY, |_, name, _| format!("given.{name}")),
            Self::UpdateMany => self.filled(UPDATE_MANY, |_, name, _| format!("given.{name}")),
            Self::Epoch => EPOCH.to_owned(),
            Self::RaiseEpoch => RAISE_EPOCH.to_owned(),
            Self::ById => BY_ID.to_owned(),
            Self::ExaminedById => EXAMINED_BY_ID.to_owned(),
            Self::OfStates => OF_STATES.to_owned(),
            Self::Due => DUE.to_owned(),
            Self::UnknownSince => UNKNOWN_SINCE.to_owned(),
            Self::ExaminedUnknown => EXAMINED_UNKNOWN.to_owned(),
            Self::PendingSince => PENDING_SINCE.to_owned(),
            Self::ExaminedPending => EXAMINED_PENDING.to_owned(),
            Self::Archive => ARCHIVE.to_owned(),
            Self::ExaminedArchive => EXAMINED_ARCHIVE.to_owned(),
            Self::Count => COUNT.to_owned(),
            Self::CountFew => COUNT_FEW.to_owned(),
            Self::AliveOfScope => ALIVE_OF_SCOPE.to_owned(),
            Self::Alive => ALIVE.to_owned(),
            Self::Delete => format!("{DELETE} {DELETED}").replace("{locked}", " SKIP LOCKED"),
            Self::DeleteAndKeep => format!("{DELETE}{KEEP} {DELETED}").replace("{locked}", " SKIP LOCKED"),
            Self::Erase => format!("{DELETE} {DELETED}").replace("{locked}", ""),
            Self::EraseArchived => ERASE_ARCHIVED.to_owned(),
            Self::Archived => ARCHIVED.to_owned(),
            Self::Results => RESULTS.to_owned(),
            Self::AddResult => ADD_RESULT.to_owned(),
            Self::DropResults => DROP_RESULTS.to_owned(),
            Self::Request => REQUEST.to_owned(),
            Self::CountRequests => COUNT_REQUESTS.to_owned(),
            Self::PutRequest => PUT_REQUEST.to_owned(),
            Self::DropRequest => DROP_REQUEST.to_owned(),
            Self::PutRequests => PUT_REQUESTS.to_owned(),
            Self::DropRequests => DROP_REQUESTS.to_owned(),
            Self::Note => NOTE.replace("{values}", &places(table::TEXTS + 1)),
            Self::Log => LOG.to_owned(),
            Self::ExaminedLog => EXAMINED_LOG.to_owned(),
            Self::DeleteEntries => DELETE_ENTRIES.to_owned(),
            Self::BlankEntries => BLANK_ENTRIES.to_owned(),
            Self::Send => SEND.to_owned(),
            Self::Claim => CLAIM.to_owned(),
            Self::Deliver => DELIVER.to_owned(),
            Self::DeliverMany => DELIVER_MANY.to_owned(),
            Self::Retry => RETRY.to_owned(),
            Self::Bury => BURY.to_owned(),
            Self::Wake => WAKE.to_owned(),
            Self::PassDead => PASS_DEAD.to_owned(),
            Self::Messages => MESSAGES.to_owned(),
            Self::MessagesByNumber => MESSAGES_BY_NUMBER.to_owned(),
            Self::MessagesDead => MESSAGES_DEAD.to_owned(),
            Self::MessagesByFirstDue => MESSAGES_BY_FIRST_DUE.to_owned(),
            Self::MessagesDelivered => MESSAGES_DELIVERED.to_owned(),
            Self::Payload => PAYLOAD.to_owned(),
            Self::Redrive => REDRIVE.replace("{noted}", &noted()),
            Self::Discard => DISCARD.replace("{noted}", &noted()),
            Self::Prune => PRUNE.to_owned(),
            Self::CountMessages => COUNT_MESSAGES.to_owned(),
            Self::OldestMessage => OLDEST_MESSAGE.to_owned(),
            Self::Settings => SETTINGS.to_owned(),
        };
        self.spelled(&sql, schema)
    }

    /// A text with the names of columns and tables filled in.
    pub(super) fn spelled(self, sql: &str, schema: &str) -> String {
        let columns: Vec<&str> = COLUMNS.split(", ").collect();
        let of_record: Vec<_> = columns.iter().map(|column| format!("record.{column}")).collect();
        let short = of_record.iter().map(|column| match &**column {
            "record.headers" | "record.body" | "record.rest" => {
                format!("CASE WHEN octet_length({column}) <= {TOGETHER_BYTES_MAX} THEN {column} END")
            }
            _ => column.clone(),
        });
        sql.replace("{filter}", FILTER)
            .replace("{not by id}", NOT_BY_ID)
            .replace("{audit}", table::COLUMNS)
            .replace("{all}", COLUMNS)
            .replace("{all but id}", &columns[1..].join(", "))
            .replace("{record}", &of_record.join(", "))
            .replace("{short}", &short.collect::<Vec<_>>().join(", "))
            .replace("{nulls}", &vec!["NULL"; columns.len() - 1].join(", "))
            .replace("{now}", "greatest(clock_timestamp(), record.written_at)")
            .replace("{schema}", schema)
    }

    /// The SQL of a write, with each value written by `as_sql`.
    pub(super) fn filled(self, sql: &str, as_sql: impl Fn(usize, &str, &str) -> String) -> String {
        let stamp = if self.is_update() {
            "greatest(statement_timestamp(), record.written_at)"
        } else {
            "statement_timestamp()"
        };
        let mut sql = sql.replace("{values}", VALUES).replace("{stamp}", stamp);
        let mut given = Vec::new();
        for (number, (name, kind)) in (1..).zip(self.parameters()) {
            sql = sql.replace(&format!("{{{name}}}"), &as_sql(number, name, kind));
            given.push(format!("unnest(${number}::{kind}[]) AS {name}"));
        }
        // In the list of a SELECT they are read side by side. In FROM each would be put aside first: three times the work.
        sql.replace("{given}", &format!("(SELECT {}) AS given", given.join(", ")))
    }

    /// The parameters of a write.
    pub(super) fn parameters(self) -> &'static [(&'static str, &'static str)] {
        // The last is the expected revision, which is an update's alone.
        if self.is_update() { &PARAMETERS } else { &PARAMETERS[..PARAMETERS.len() - 1] }
    }

    const fn is_update(self) -> bool {
        matches!(self, Self::Update | Self::UpdateMany)
    }
}

/// `$1, $2, …`
fn places(count: usize) -> String {
    (1..=count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

/// The entry of the audit log of a change to a message, whose number is the first parameter. It is written with the change.
fn noted() -> String {
    let texts = (2..table::TEXTS + 2).map(|place| format!("${place}::text"));
    let values = texts.chain([format!("${}::boolean", table::TEXTS + 2)]).collect::<Vec<_>>().join(", ");
    format!(
        "noted AS (
        INSERT INTO {{schema}}.onlyonce_audit ({{audit}}, at) SELECT {values}, clock_timestamp() FROM changed
        ON CONFLICT (id) DO NOTHING
    )"
    )
}

/// If several records are read at once, a longer column is left out, so that an answer does not hold a hundred large
/// bodies. The caller then reads that record alone.
const TOGETHER_BYTES_MAX: usize = 64 << 10;

/// The parameters of a write, in order, with their types. Only an update has the expected revision. A moment is sent
/// absolute (`_at`) or relative to the write (`_after`). `created_at` and `began_at` are never after the write; null means
/// the write itself.
const PARAMETERS: [(&str, &str); 32] = [
    ("id", "bytea"),
    ("revision", "bigint"),
    ("scope", "bytea"),
    ("label", "text"),
    ("key", "text"),
    ("route", "text"),
    ("state", "text"),
    ("attempt", "bigint"),
    ("token", "bytea"),
    ("effects", "text"),
    ("retention_us", "bigint"),
    ("created_at", "timestamptz"),
    ("began_at", "timestamptz"),
    ("due_at", "timestamptz"),
    ("due_after", "interval"),
    ("lapses_at", "timestamptz"),
    ("lapses_after", "interval"),
    ("expires_at", "timestamptz"),
    ("expires_after", "interval"),
    ("unknown_since", "timestamptz"),
    ("unknown_after", "interval"),
    ("reason", "text"),
    ("dead_letter", "boolean"),
    ("completed_by", "text"),
    ("recovery_point", "text"),
    ("status", "integer"),
    ("headers", "bytea"),
    ("body", "bytea"),
    ("rest", "bytea"),
    ("key_id", "bytea"),
    ("rest_key_id", "bytea"),
    ("expected", "bigint"),
];

/// The values of [`COLUMNS`] after the id, in their order.
const VALUES: &str = "{revision}, {scope}, {label}, {key}, {route}, {state}, {attempt}, {token}, {effects},
            {retention_us}, coalesce({created_at}, {stamp}), coalesce({began_at}, {stamp}), {stamp},
            least({due_at}, {stamp} + {due_after}), least({lapses_at}, {stamp} + {lapses_after}),
            least({expires_at}, {stamp} + {expires_after}), least({unknown_since}, {stamp} + {unknown_after}),
            {reason}, {dead_letter}, {completed_by}, {recovery_point}, {status}, {headers}, {body}, {rest},
            {key_id}, {rest_key_id}";

/// Relies on the primary key.
///
/// id
const LOAD: &str = "SELECT {record}, {now} FROM {schema}.onlyonce_record AS record WHERE id = $1";

/// Many looks at once. Relies on the primary key, which is searched for each id.
///
/// ids
const LOAD_MANY: &str =
    "SELECT {short}, {now} FROM {schema}.onlyonce_record AS record WHERE id = ANY ($1::bytea[])";

/// Relies on the primary key. A read that is a commit: a standby has confirmed what it returns (`doubt.rs`).
///
/// id
const CONFIRM: &str = "
    UPDATE {schema}.onlyonce_record AS record SET revision = revision WHERE id = $1
    RETURNING {record}, {now}";

/// Relies on the primary key: if the id is taken, nothing is written and the existing record is returned. It waits for a
/// concurrent insert of the same id, but not for a row lock.
const INSERT: &str = "
    WITH written AS (
        INSERT INTO {schema}.onlyonce_record ({all}) VALUES ({id}, {values})
        ON CONFLICT (id) DO NOTHING
        RETURNING id, written_at
    )
    SELECT id, {nulls}, written_at FROM written
    UNION ALL
    SELECT {record}, {now} FROM {schema}.onlyonce_record AS record
    WHERE id = {id} AND NOT EXISTS (SELECT FROM written)";

/// The same for many, sorted by id.
const INSERT_MANY: &str = "
    WITH written AS (
        INSERT INTO {schema}.onlyonce_record ({all}) SELECT {id}, {values} FROM {given}
        ON CONFLICT (id) DO NOTHING
        RETURNING id, written_at
    )
    SELECT id, {nulls}, written_at FROM written
    UNION ALL
    SELECT {short}, {now} FROM {schema}.onlyonce_record AS record
    WHERE (SELECT count(*) FROM written) < cardinality($1::bytea[]) AND id = ANY ($1::bytea[])";

/// Relies on the primary key and the row lock: it writes the row it compared. A lost update does not return the current
/// record: that is rare, and takes a second statement.
const UPDATE: &str = "
    UPDATE {schema}.onlyonce_record AS record SET ({all but id}) = ROW ({values})
    WHERE id = {id} AND revision = {expected}
    RETURNING id, written_at";

/// The same for many. Locked rows are skipped, so that no batch waits for one row.
const UPDATE_MANY: &str = "
    UPDATE {schema}.onlyonce_record AS record SET ({all but id}) = ROW ({values})
    FROM (
        SELECT given.* FROM {given} JOIN {schema}.onlyonce_record AS held
            ON held.id = given.id AND held.revision = given.expected
        FOR NO KEY UPDATE OF held SKIP LOCKED
    ) AS given
    WHERE record.id = {id} AND record.revision = {expected}
    RETURNING record.id, record.written_at";

/// The table has one row. It also returns what the schema needs of a release, so that a running node learns that it is too
/// old.
const EPOCH: &str = "
    SELECT epoch, clock_timestamp(), name, (SELECT max(needs) FROM {schema}.onlyonce_migration)
    FROM {schema}.onlyonce_store WHERE one = 1";
const RAISE_EPOCH: &str = "
    UPDATE {schema}.onlyonce_store
    SET epoch = greatest(epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    WHERE one = 1 RETURNING epoch";

/// What narrows a listing: the first parameters of its statement. Text is compared as it is: nothing in it is a pattern.
///
/// states, scope, route, dead letters only, text, what a key begins with, first and last of what a scope or an id begins with
const FILTER: &str = "($1::text[] IS NULL OR record.state = ANY ($1))
      AND ($2::bytea IS NULL OR record.scope = $2) AND ($3::text IS NULL OR record.route = $3)
      AND (NOT $4::boolean OR record.dead_letter)
      AND ($5::text IS NULL OR record.key = $5 OR record.label = $5
           OR left(record.key, char_length($6::text)) = $6
           OR record.scope BETWEEN $7::bytea AND $8::bytea OR record.id BETWEEN $7 AND $8)";
/// What was found by its id has been shown before the rest.
const NOT_BY_ID: &str = "($7::bytea IS NULL OR record.id NOT BETWEEN $7 AND $8)";

/// Relies on the primary key, read in order from the cursor.
///
/// the filter; after id, to id, limit
const BY_ID: &str = "
    SELECT {record}, {now} FROM {schema}.onlyonce_record AS record
    WHERE id > $9 AND id <= $10 AND {filter} AND {not by id}
    ORDER BY id LIMIT $11";

/// The last id that a page examines. Relies on the primary key, and reads no record.
///
/// after id, how many before it
const EXAMINED_BY_ID: &str =
    "SELECT id FROM {schema}.onlyonce_record WHERE id > $1 ORDER BY id OFFSET $2 LIMIT 1";

/// Records of states with few of them. Relies on the index by state: the order keeps the planner from walking along the
/// primary key until it has found enough.
///
/// the filter; after id, states, how many of each are examined, limit
const OF_STATES: &str = "
    SELECT {record}, {now}
    FROM unnest($10::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT * FROM {schema}.onlyonce_record AS record WHERE record.state = wanted.state
        ORDER BY due_at LIMIT $11
    ) AS record
    WHERE id > $9 AND {filter} AND {not by id}
    ORDER BY id LIMIT $12";

/// Relies on the index by state and due time, read in order from the cursor for each state: a million expired records are
/// not sorted to find a lapsed lease.
///
/// the filter; after due time, after id, states, limit
const DUE: &str = "
    SELECT {record}, {now}
    FROM unnest($11::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT * FROM {schema}.onlyonce_record AS record
        WHERE record.state = wanted.state AND due_at <= (SELECT clock_timestamp())
          AND due_at >= $9 AND (due_at > $9 OR id > $10) AND {filter}
        ORDER BY due_at, id LIMIT $12
    ) AS record
    ORDER BY due_at, id LIMIT $12";

/// Relies on the index of unknown records, read in order from the cursor.
///
/// the filter; after moment, after id, to moment, to id, limit
const UNKNOWN_SINCE: &str = "
    SELECT {record}, {now} FROM {schema}.onlyonce_record AS record
    WHERE unknown_since IS NOT NULL AND (unknown_since, id) > ($9, $10) AND (unknown_since, id) <= ($11, $12)
      AND {filter}
    ORDER BY unknown_since, id LIMIT $13";

/// The last place that a page examines. Relies on the index of unknown records, and reads no record.
///
/// after moment, after id, how many before it
const EXAMINED_UNKNOWN: &str = "
    SELECT id, unknown_since FROM {schema}.onlyonce_record
    WHERE unknown_since IS NOT NULL AND (unknown_since, id) > ($1, $2)
    ORDER BY unknown_since, id OFFSET $3 LIMIT 1";

/// Relies on the index of pending records, read in order from the cursor.
///
/// the filter; after moment, after id, to moment, to id, limit
const PENDING_SINCE: &str = "
    SELECT {record}, {now} FROM {schema}.onlyonce_record AS record
    WHERE record.state = 'pending' AND (created_at, id) > ($9, $10) AND (created_at, id) <= ($11, $12) AND {filter}
    ORDER BY created_at, id LIMIT $13";

/// The last place that a page examines. Relies on the index of pending records, and reads no record.
///
/// after moment, after id, how many before it
const EXAMINED_PENDING: &str = "
    SELECT id, created_at FROM {schema}.onlyonce_record
    WHERE state = 'pending' AND (created_at, id) > ($1, $2)
    ORDER BY created_at, id OFFSET $3 LIMIT 1";

/// Relies on the archive's primary key, read in order from the cursor.
///
/// the filter; after number, to number, limit
const ARCHIVE: &str = "
    SELECT {record}, record.number, {now} FROM {schema}.onlyonce_archive AS record
    WHERE record.number > $9 AND record.number <= $10 AND {filter}
    ORDER BY record.number LIMIT $11";

/// The last number that a page examines. Relies on the archive's primary key, and reads no record.
///
/// after number, how many before it
const EXAMINED_ARCHIVE: &str =
    "SELECT number FROM {schema}.onlyonce_archive WHERE number > $1 ORDER BY number OFFSET $2 LIMIT 1";

/// Relies on the index by state, of which at most `limit` entries are read per state. The order keeps the planner, which
/// assumes that a fifth of all records are in each state, from scanning the table. Beyond the limit the statistics give an
/// estimate.
///
/// states, limit, the table's name
const COUNT: &str = "
    SELECT named.state,
           (SELECT count(*) FROM (
                SELECT FROM {schema}.onlyonce_record AS record WHERE record.state = named.state
                ORDER BY due_at LIMIT $2
            ) AS counted),
           (SELECT (known.reltuples * told.part)::bigint
            FROM pg_class AS known
                JOIN pg_namespace AS schemas ON schemas.oid = known.relnamespace
                JOIN pg_stats AS stats ON stats.schemaname = schemas.nspname
                    AND stats.tablename = known.relname AND stats.attname = 'state'
                CROSS JOIN LATERAL unnest(stats.most_common_vals::text::text[], stats.most_common_freqs)
                    AS told (state, part)
            WHERE known.oid = $3::text::regclass AND told.state = named.state)
    FROM unnest($1::text[]) AS named (state)";

/// The same without an estimate.
///
/// states, limit
const COUNT_FEW: &str = "
    SELECT (SELECT count(*) FROM (
                SELECT FROM {schema}.onlyonce_record AS record WHERE record.state = named.state
                ORDER BY due_at LIMIT $2
            ) AS counted)
    FROM unnest($1::text[]) AS named (state)";

/// Records of a scope that have not expired, and how many microseconds are left until the next one does. Relies on the index
/// by scope, which is made where somebody counts (`migration.rs`); the order keeps the planner on it.
///
/// scope, limit
const ALIVE_OF_SCOPE: &str = "
    SELECT (SELECT count(*) FROM (
                SELECT FROM {schema}.onlyonce_record AS record WHERE record.scope = $1 AND record.expires_at IS NULL
                LIMIT $2
            ) AS unsettled)
         + (SELECT count(*) FROM (
                SELECT FROM {schema}.onlyonce_record AS record
                WHERE record.scope = $1 AND record.expires_at > (SELECT clock_timestamp())
                ORDER BY record.expires_at LIMIT $2
            ) AS settled),
           (SELECT (extract(epoch FROM min(record.expires_at) - (SELECT clock_timestamp())) * 1000000)::bigint
            FROM {schema}.onlyonce_record AS record
            WHERE record.scope = $1 AND record.expires_at > (SELECT clock_timestamp()))";

/// Records that have not expired. Reads the whole index by scope.
///
/// limit
const ALIVE: &str = "
    SELECT count(*), NULL::bigint FROM (
        SELECT FROM {schema}.onlyonce_record AS record
        WHERE record.expires_at IS NULL OR record.expires_at > (SELECT clock_timestamp()) LIMIT $1
    ) AS alive";

/// Deletes exactly the rows that were judged: a revision never comes back. Relies on the primary key. The reaper skips locked
/// rows; whoever erases waits for them.
///
/// ids, revisions
const DELETE: &str = "
    WITH doomed AS MATERIALIZED (
        SELECT record.id, record.revision
        FROM unnest($1::bytea[], $2::bigint[]) AS judged (id, revision)
        JOIN {schema}.onlyonce_record AS record
            ON record.id = judged.id AND record.revision = judged.revision
        ORDER BY record.id
        FOR UPDATE OF record{locked}
    ),
    deleted AS (
        DELETE FROM {schema}.onlyonce_record AS record USING doomed
        WHERE record.id = doomed.id AND record.revision = doomed.revision
        RETURNING {record}
    ),
    results AS (
        DELETE FROM {schema}.onlyonce_result AS result USING deleted WHERE result.record = deleted.id
    ),
    requests AS (
        DELETE FROM {schema}.onlyonce_request AS request USING deleted WHERE request.record = deleted.id
    )";
const KEEP: &str = ",
    kept AS (
        INSERT INTO {schema}.onlyonce_archive (archived_at, {all})
        SELECT clock_timestamp(), {all} FROM deleted
    )";
const DELETED: &str = "SELECT count(*) FROM deleted";

/// Relies on the archive's index by scope.
///
/// scope, limit
const ERASE_ARCHIVED: &str = "
    WITH deleted AS (
        DELETE FROM {schema}.onlyonce_archive WHERE number IN (
            SELECT number FROM {schema}.onlyonce_archive WHERE scope = $1 LIMIT $2)
        RETURNING number
    )
    SELECT count(*) FROM deleted";

/// Relies on the archive's index over ids.
///
/// id, limit
const ARCHIVED: &str = "
    SELECT {record}, {now} FROM {schema}.onlyonce_archive AS record
    WHERE id = $1 ORDER BY number DESC LIMIT $2";

/// Relies on the primary key of the results, and so do the next two.
///
/// record, used at
const RESULTS: &str = "
    SELECT number, phase, result, sealed FROM {schema}.onlyonce_result WHERE record = $1 AND used_at = $2 ORDER BY number";

/// record, number, used at, phase, result, the same encrypted
const ADD_RESULT: &str = "
    INSERT INTO {schema}.onlyonce_result (record, number, used_at, phase, result, sealed) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (record, number) DO UPDATE
    SET used_at = excluded.used_at, phase = excluded.phase, result = excluded.result, sealed = excluded.sealed";

/// record
const DROP_RESULTS: &str = "DELETE FROM {schema}.onlyonce_result WHERE record = $1";

/// Relies on the primary key of the requests, and so do the next three.
///
/// record, used at
const REQUEST: &str =
    "SELECT request, key_id FROM {schema}.onlyonce_request WHERE record = $1 AND used_at = $2";

/// limit
const COUNT_REQUESTS: &str = "
    SELECT count(*) FROM (SELECT FROM {schema}.onlyonce_request ORDER BY record LIMIT $1) AS counted";

/// record, used at, request, key id
const PUT_REQUEST: &str = "
    INSERT INTO {schema}.onlyonce_request (record, used_at, request, key_id) VALUES ($1, $2, $3, $4)
    ON CONFLICT (record) DO UPDATE
    SET used_at = excluded.used_at, request = excluded.request, key_id = excluded.key_id";

/// record
const DROP_REQUEST: &str = "DELETE FROM {schema}.onlyonce_request WHERE record = $1";

/// Those of a batch, in its transaction: of records that were written, which have the revisions of their swaps now. Relies on
/// both primary keys, and so does the next.
///
/// ids, revisions, requests, key ids
const PUT_REQUESTS: &str = "
    INSERT INTO {schema}.onlyonce_request (record, used_at, request, key_id)
    SELECT record.id, record.created_at, given.request, given.key_id
    FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[]) AS given (id, revision, request, key_id)
        JOIN {schema}.onlyonce_record AS record ON record.id = given.id AND record.revision = given.revision
    ON CONFLICT (record) DO UPDATE
    SET used_at = excluded.used_at, request = excluded.request, key_id = excluded.key_id";

/// ids, revisions
const DROP_REQUESTS: &str = "
    DELETE FROM {schema}.onlyonce_request AS request
    USING unnest($1::bytea[], $2::bigint[]) AS given (id, revision), {schema}.onlyonce_record AS record
    WHERE record.id = given.id AND record.revision = given.revision AND request.record = given.id";

/// An entry whose id exists already is the same entry: it is written once. Relies on the log's primary key.
///
/// its columns, in their order
const NOTE: &str = "
    INSERT INTO {schema}.onlyonce_audit ({audit}, at) VALUES ({values}, clock_timestamp())
    ON CONFLICT (id) DO NOTHING";

/// Relies on the log's index by time, read backwards from the cursor.
///
/// before moment, before number, from moment, from number, who, action, scope, key, limit
const LOG: &str = "
    SELECT at, number, {audit} FROM {schema}.onlyonce_audit
    WHERE (at, number) < ($1, $2) AND (at, number) >= ($3, $4)
      AND ($5::text IS NULL OR who = $5) AND ($6::text IS NULL OR action = $6)
      AND ($7::text IS NULL OR scope = $7) AND ($8::text IS NULL OR key = $8)
    ORDER BY at DESC, number DESC LIMIT $9";

/// The last place that a page of the log examines. Relies on the log's index by time, and reads no entry.
///
/// before moment, before number, from moment, from number, how many before it
const EXAMINED_LOG: &str = "
    SELECT at, number FROM {schema}.onlyonce_audit
    WHERE (at, number) < ($1, $2) AND (at, number) >= ($3, $4)
    ORDER BY at DESC, number DESC OFFSET $5 LIMIT 1";

/// Relies on the log's index by time; what another node is deleting is skipped.
///
/// age, limit
const DELETE_ENTRIES: &str = "
    WITH old AS MATERIALIZED (
        SELECT id FROM {schema}.onlyonce_audit WHERE at < (SELECT clock_timestamp() - $1::interval)
        ORDER BY at, number LIMIT $2
        FOR UPDATE SKIP LOCKED
    ),
    deleted AS (
        DELETE FROM {schema}.onlyonce_audit AS entry USING old WHERE entry.id = old.id
        RETURNING entry.id
    )
    SELECT count(*) FROM deleted";

/// Relies on the log's index by scope.
///
/// scope, limit
const BLANK_ENTRIES: &str = "
    WITH named AS MATERIALIZED (
        SELECT id FROM {schema}.onlyonce_audit
        WHERE scope = $1 AND (key IS NOT NULL OR scope_label IS NOT NULL)
        LIMIT $2
    ),
    blanked AS (
        UPDATE {schema}.onlyonce_audit AS entry SET key = NULL, scope_label = NULL
        FROM named WHERE entry.id = named.id
        RETURNING entry.id
    )
    SELECT count(*) FROM blanked";

/// A message whose key exists already is the same message: it is stored once. Relies on the messages' unique keys.
///
/// keys, destinations, payloads, content types, groups, delays, record, the key that payloads are encrypted with
const SEND: &str = "
    INSERT INTO {schema}.onlyonce_outbox (key, destination, payload, content_type, group_key, due_at, record, key_id)
    SELECT key, destination, payload, content_type, group_key, clock_timestamp() + delay, $7::bytea, $8::bytea
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::interval[])
        WITH ORDINALITY AS message (key, destination, payload, content_type, group_key, delay, place)
    ORDER BY place
    ON CONFLICT (key) DO NOTHING";

/// Relies on the messages' index by due time for what is wanted of each destination, on the index by group for whether
/// another message is ahead, and on the primary key for all else. Messages that another relay is claiming are skipped.
///
/// A message that is behind another is marked as held only while that other one is locked as undelivered. Whoever settles
/// it then waits for this statement, and wakes the group in a statement that sees the mark: no message is held for nothing.
///
/// token, destinations, how many of each, how many of each are looked at, leases, destinations whose dead letters block
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT wanted.*, message.*
        FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::interval[])
                 AS wanted (destination, claims, looks, lease)
             CROSS JOIN LATERAL (
                 SELECT number, group_key, state, due_at FROM {schema}.onlyonce_outbox AS message
                 WHERE message.destination = wanted.destination AND message.state IN ('waiting', 'claimed')
                   AND NOT message.held AND message.due_at <= (SELECT clock_timestamp())
                 ORDER BY message.due_at, message.number LIMIT wanted.looks
                 FOR UPDATE SKIP LOCKED
             ) AS message
    ),
    placed AS MATERIALIZED (
        SELECT number, destination, due_at, claims, lease,
               CASE WHEN group_key IS NOT NULL AND state = 'waiting' THEN coalesce(
                   (SELECT number FROM {schema}.onlyonce_outbox AS other
                    WHERE other.destination = due.destination AND other.group_key = due.group_key
                      AND other.state = 'claimed' LIMIT 1),
                   (SELECT number FROM {schema}.onlyonce_outbox AS other
                    WHERE other.destination = due.destination AND other.group_key = due.group_key
                      AND other.state IN ('waiting', 'claimed') AND other.number < due.number
                    ORDER BY other.number LIMIT 1),
                   (SELECT number FROM {schema}.onlyonce_outbox AS other
                    WHERE other.destination = due.destination AND other.group_key = due.group_key
                      AND other.state = 'dead' AND other.number < due.number AND due.destination = ANY ($6::text[])
                    ORDER BY other.number LIMIT 1)
               ) END AS ahead
        FROM due
    ),
    blocking AS MATERIALIZED (
        SELECT other.number FROM {schema}.onlyonce_outbox AS other
        WHERE other.number IN (SELECT ahead FROM placed WHERE ahead IS NOT NULL)
          AND (other.state IN ('waiting', 'claimed') OR (other.state = 'dead' AND other.destination = ANY ($6)))
        FOR SHARE SKIP LOCKED
    ),
    first AS MATERIALIZED (
        SELECT number, lease, claims >= row_number() OVER (PARTITION BY destination ORDER BY due_at, number) AS claims
        FROM placed WHERE ahead IS NULL
    ),
    judged AS MATERIALIZED (
        SELECT placed.number, NULL AS lease FROM placed JOIN blocking ON blocking.number = placed.ahead
        UNION ALL
        SELECT number, lease FROM first WHERE claims
    ),
    changed AS (
        UPDATE {schema}.onlyonce_outbox AS message
        SET held = lease IS NULL,
            state = CASE WHEN lease IS NULL THEN message.state ELSE 'claimed' END,
            token = CASE WHEN lease IS NULL THEN message.token ELSE $1::bytea END,
            deliveries = deliveries + CASE WHEN lease IS NULL THEN 0 ELSE 1 END,
            first_due_at = CASE WHEN lease IS NULL THEN first_due_at ELSE coalesce(first_due_at, due_at) END,
            due_at = coalesce(clock_timestamp() + lease, due_at)
        FROM judged WHERE message.number = judged.number
        RETURNING message.*
    )
    SELECT held, destination, number, key, CASE WHEN NOT held THEN payload END, content_type, group_key, deliveries,
           failures, first_due_at, statement_timestamp(), key_id
    FROM changed ORDER BY first_due_at, number";

/// Relies on the primary key, and so do the next three. A lapsed claim can still settle if no other relay has claimed the
/// message: its delivery was made.
///
/// number, token, the provider's id
const DELIVER: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET state = 'delivered', token = NULL, payload = NULL, key_id = NULL, delivered_at = clock_timestamp(), provider_id = $3
    WHERE number = $1 AND token = $2 RETURNING number";

/// The same for many. No two relays settle one message by the same token, so two batches do not wait for each other.
///
/// numbers, tokens, the providers' ids
const DELIVER_MANY: &str = "
    UPDATE {schema}.onlyonce_outbox AS message
    SET state = 'delivered', token = NULL, payload = NULL, key_id = NULL, delivered_at = clock_timestamp(),
        provider_id = given.provider_id
    FROM unnest($1::bigint[], $2::bytea[], $3::text[]) AS given (number, token, provider_id)
    WHERE message.number = given.number AND message.token = given.token RETURNING message.number";

/// An error that does not count takes the place of the one before it, if that said the same.
///
/// number, token, status, error, pause, whether it counts
const RETRY: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET state = 'waiting', token = NULL, due_at = clock_timestamp() + $5::interval,
        failures = failures + CASE WHEN $6::boolean THEN 1 ELSE 0 END,
        errors = CASE WHEN NOT $6 AND errors -> -1 ->> 'error' = $4 THEN errors - -1 ELSE errors END
            || jsonb_build_object('at', clock_timestamp(), 'delivery', deliveries, 'status', $3::integer,
                                  'error', $4::text)
    WHERE number = $1 AND token = $2 RETURNING number";

/// number, token, status, error
const BURY: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET state = 'dead', token = NULL,
        errors = errors || jsonb_build_object('at', clock_timestamp(), 'delivery', deliveries, 'status', $3::integer,
                                              'error', $4::text)
    WHERE number = $1 AND token = $2 RETURNING number";

/// The first of a group is looked at again. In the transaction of what it waited for, and after that. Relies on the index by
/// group.
///
/// destination, group
const WAKE: &str = "
    UPDATE {schema}.onlyonce_outbox SET held = false
    WHERE held AND number = (
        SELECT number FROM {schema}.onlyonce_outbox
        WHERE destination = $1 AND group_key = $2 AND state IN ('waiting', 'claimed') ORDER BY number LIMIT 1)
    RETURNING number";

/// The same for every group with a dead letter. Relies on the index of dead letters.
///
/// destination
const PASS_DEAD: &str = "
    UPDATE {schema}.onlyonce_outbox SET held = false
    WHERE held AND number = ANY (ARRAY (
        SELECT first.number
        FROM (SELECT DISTINCT group_key FROM {schema}.onlyonce_outbox
              WHERE destination = $1 AND state = 'dead' AND group_key IS NOT NULL) AS dead
             CROSS JOIN LATERAL (
                 SELECT number FROM {schema}.onlyonce_outbox AS message
                 WHERE message.destination = $1 AND message.group_key = dead.group_key
                   AND message.state IN ('waiting', 'claimed')
                 ORDER BY number LIMIT 1
             ) AS first))
    RETURNING number";

/// Relies on the primary key.
///
/// numbers
const MESSAGES: &str = "
    SELECT number, key, destination, group_key, state, message.deliveries, created_at, due_at, delivered_at, provider_id,
           record, told.moments, told.deliveries, told.statuses, told.errors
    FROM {schema}.onlyonce_outbox AS message CROSS JOIN LATERAL (
        SELECT array_agg((error ->> 'at')::timestamptz ORDER BY place) AS moments,
               array_agg((error ->> 'delivery')::integer ORDER BY place) AS deliveries,
               array_agg((error ->> 'status')::integer ORDER BY place) AS statuses,
               array_agg(error ->> 'error' ORDER BY place) AS errors
        FROM jsonb_array_elements(message.errors) WITH ORDINALITY AS told (error, place)
    ) AS told
    WHERE number = ANY ($1::bigint[])";

/// What a page of a listing examines. Each relies on the index of its order.
///
/// after moment, after number, limit
const MESSAGES_BY_NUMBER: &str = "
    SELECT $1::timestamptz, number, state, destination FROM {schema}.onlyonce_outbox
    WHERE number > $2 ORDER BY number LIMIT $3";
const MESSAGES_DEAD: &str = "
    SELECT $1::timestamptz, number, state, destination FROM {schema}.onlyonce_outbox
    WHERE state = 'dead' AND number > $2 ORDER BY number LIMIT $3";
const MESSAGES_BY_FIRST_DUE: &str = "
    SELECT coalesce(first_due_at, due_at), number, state, destination FROM {schema}.onlyonce_outbox
    WHERE state IN ('waiting', 'claimed') AND (coalesce(first_due_at, due_at), number) > ($1, $2)
    ORDER BY coalesce(first_due_at, due_at), number LIMIT $3";
const MESSAGES_DELIVERED: &str = "
    SELECT delivered_at, number, state, destination FROM {schema}.onlyonce_outbox
    WHERE state = 'delivered' AND (delivered_at, number) > ($1, $2) ORDER BY delivered_at, number LIMIT $3";

/// Relies on the primary key.
///
/// number
const PAYLOAD: &str =
    "SELECT payload, content_type, key, key_id FROM {schema}.onlyonce_outbox WHERE number = $1";

/// Relies on the primary key. Returns whether there is such a message, and whether it was changed.
///
/// number, then the columns of an entry
const REDRIVE: &str = "
    WITH changed AS (
        UPDATE {schema}.onlyonce_outbox
        SET state = 'waiting', held = false, failures = 0, due_at = clock_timestamp(), first_due_at = clock_timestamp()
        WHERE number = $1 AND state = 'dead' RETURNING number
    ),
    {noted}
    SELECT EXISTS (SELECT FROM changed) FROM {schema}.onlyonce_outbox WHERE number = $1";

/// The same.
const DISCARD: &str = "
    WITH changed AS (
        DELETE FROM {schema}.onlyonce_outbox
        WHERE number = $1 AND (state <> 'claimed' OR due_at <= (SELECT clock_timestamp())) RETURNING number
    ),
    {noted}
    SELECT EXISTS (SELECT FROM changed) FROM {schema}.onlyonce_outbox WHERE number = $1";

/// Relies on the index of delivered messages; what another node is deleting is skipped.
///
/// age, limit
const PRUNE: &str = "
    WITH old AS MATERIALIZED (
        SELECT number FROM {schema}.onlyonce_outbox
        WHERE state = 'delivered' AND delivered_at < (SELECT clock_timestamp() - $1::interval)
        ORDER BY delivered_at, number LIMIT $2
        FOR UPDATE SKIP LOCKED
    ),
    deleted AS (
        DELETE FROM {schema}.onlyonce_outbox WHERE number = ANY (ARRAY (SELECT number FROM old))
        RETURNING number
    )
    SELECT count(*) FROM deleted";

/// Relies on the index by first due time, that of dead letters and that of delivered messages: each is read up to the limit.
/// The statistics give an estimate of more.
///
/// limit, the table's name
const COUNT_MESSAGES: &str = "
    WITH undelivered AS MATERIALIZED (
        SELECT state FROM {schema}.onlyonce_outbox WHERE state IN ('waiting', 'claimed')
        ORDER BY coalesce(first_due_at, due_at), number LIMIT $1
    ),
    counted AS (
        SELECT named.state, (SELECT count(*) FROM undelivered WHERE undelivered.state = named.state) AS count
        FROM unnest(ARRAY['waiting', 'claimed']) AS named (state)
        UNION ALL
        SELECT 'delivered', (SELECT count(*) FROM (
            SELECT FROM {schema}.onlyonce_outbox WHERE state = 'delivered' ORDER BY delivered_at LIMIT $1) AS few)
        UNION ALL
        SELECT 'dead', (SELECT count(*) FROM (
            SELECT FROM {schema}.onlyonce_outbox WHERE state = 'dead' ORDER BY destination LIMIT $1) AS few)
    )
    SELECT counted.state, counted.count,
           (SELECT (known.reltuples * told.part)::bigint
            FROM pg_class AS known
                JOIN pg_namespace AS schemas ON schemas.oid = known.relnamespace
                JOIN pg_stats AS stats ON stats.schemaname = schemas.nspname
                    AND stats.tablename = known.relname AND stats.attname = 'state'
                CROSS JOIN LATERAL unnest(stats.most_common_vals::text::text[], stats.most_common_freqs)
                    AS told (state, part)
            WHERE known.oid = $2::text::regclass AND told.state = counted.state)
    FROM counted";

/// Relies on the index by first due time.
const OLDEST_MESSAGE: &str = "
    SELECT number, key, destination, coalesce(first_due_at, due_at), clock_timestamp() FROM {schema}.onlyonce_outbox
    WHERE state IN ('waiting', 'claimed') AND coalesce(first_due_at, due_at) <= (SELECT clock_timestamp())
    ORDER BY coalesce(first_due_at, due_at), number LIMIT 1";

/// Settings that the promises depend on, as this session sees them; whether all three functions are there; and what this role's
/// sessions begin with.
///
/// the schema's name
const SETTINGS: &str = "
    SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
           (SELECT count(*) = 3 FROM pg_proc AS known JOIN pg_namespace AS schemas ON schemas.oid = known.pronamespace
            WHERE schemas.nspname = $1::text
              AND known.proname IN ('onlyonce_hold', 'onlyonce_complete', 'onlyonce_send')),
           (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')";
