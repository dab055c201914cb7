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
    Count,
    CountFew,
    Delete,
    DeleteAndKeep,
    Erase,
    EraseArchived,
    Archived,
    Note,
    Log,
    ExaminedLog,
    DeleteEntries,
    BlankEntries,
    Send,
    Claim,
    Deliver,
    Retry,
    Bury,
    ProviderId,
    DeadLetters,
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
            Self::Count => COUNT.to_owned(),
            Self::CountFew => COUNT_FEW.to_owned(),
            Self::Delete => format!("{DELETE} {DELETED}").replace("{locked}", " SKIP LOCKED"),
            Self::DeleteAndKeep => format!("{DELETE}{KEEP} {DELETED}").replace("{locked}", " SKIP LOCKED"),
            Self::Erase => format!("{DELETE} {DELETED}").replace("{locked}", ""),
            Self::EraseArchived => ERASE_ARCHIVED.to_owned(),
            Self::Archived => ARCHIVED.to_owned(),
            Self::Note => NOTE.replace("{values}", &places(table::TEXTS + 1)),
            Self::Log => LOG.to_owned(),
            Self::ExaminedLog => EXAMINED_LOG.to_owned(),
            Self::DeleteEntries => DELETE_ENTRIES.to_owned(),
            Self::BlankEntries => BLANK_ENTRIES.to_owned(),
            Self::Send => SEND.to_owned(),
            Self::Claim => CLAIM.to_owned(),
            Self::Deliver => DELIVER.to_owned(),
            Self::Retry => RETRY.to_owned(),
            Self::Bury => BURY.to_owned(),
            Self::ProviderId => PROVIDER_ID.to_owned(),
            Self::DeadLetters => DEAD_LETTERS.to_owned(),
            Self::Settings => SETTINGS.to_owned(),
        };
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
    fn filled(self, sql: &str, as_sql: impl Fn(usize, &str, &str) -> String) -> String {
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

/// If several records are read at once, a longer column is left out, so that an answer does not hold a hundred large
/// bodies. The caller then reads that record alone.
const TOGETHER_BYTES_MAX: usize = 64 << 10;

/// The parameters of a write, in order, with their types. Only an update has the expected revision. A moment is sent
/// absolute (`_at`) or relative to the write (`_after`). `created_at` and `began_at` are never after the write; null means
/// the write itself.
const PARAMETERS: [(&str, &str); 30] = [
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
    ("expected", "bigint"),
];

/// The values of [`COLUMNS`] after the id, in their order.
const VALUES: &str = "{revision}, {scope}, {label}, {key}, {route}, {state}, {attempt}, {token}, {effects},
            {retention_us}, coalesce({created_at}, {stamp}), coalesce({began_at}, {stamp}), {stamp},
            least({due_at}, {stamp} + {due_after}), least({lapses_at}, {stamp} + {lapses_after}),
            least({expires_at}, {stamp} + {expires_after}), least({unknown_since}, {stamp} + {unknown_after}),
            {reason}, {dead_letter}, {completed_by}, {recovery_point}, {status}, {headers}, {body}, {rest}";

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
/// keys, destinations, payloads, content types, groups, delays, record
const SEND: &str = "
    INSERT INTO {schema}.onlyonce_outbox (key, destination, payload, content_type, group_key, due_at, record)
    SELECT key, destination, payload, content_type, group_key, clock_timestamp() + delay, $7::bytea
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::interval[])
        WITH ORDINALITY AS message (key, destination, payload, content_type, group_key, delay, place)
    ORDER BY place
    ON CONFLICT (key) DO NOTHING";

/// Relies on the messages' index by due time; messages that another relay is claiming are skipped.
///
/// token, lease, limit
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT number, due_at FROM {schema}.onlyonce_outbox
        WHERE state IN ('waiting', 'claimed') AND due_at <= (SELECT clock_timestamp())
        ORDER BY due_at, number LIMIT $3
        FOR UPDATE SKIP LOCKED
    ),
    claimed AS (
        UPDATE {schema}.onlyonce_outbox AS message
        SET state = 'claimed', token = $1, deliveries = deliveries + 1, due_at = clock_timestamp() + $2::interval
        FROM due WHERE message.number = due.number
        RETURNING due.due_at AS was_due_at, message.*
    )
    SELECT key, destination, payload, content_type, group_key, deliveries FROM claimed ORDER BY was_due_at, number";

/// Relies on the messages' unique keys, and so do the next two. A lapsed claim can still settle if no other relay has
/// claimed the message: its delivery was made.
///
/// key, token, the provider's id
const DELIVER: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET state = 'delivered', token = NULL, payload = NULL, delivered_at = clock_timestamp(), provider_id = $3
    WHERE key = $1 AND token = $2 RETURNING number";

/// key, token, error, pause
const RETRY: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET state = 'waiting', token = NULL, due_at = clock_timestamp() + $4::interval,
        errors = errors || jsonb_build_object('at', clock_timestamp(), 'delivery', deliveries, 'error', $3::text)
    WHERE key = $1 AND token = $2 RETURNING number";

/// key, token, error
const BURY: &str = "
    UPDATE {schema}.onlyonce_outbox
    SET state = 'dead', token = NULL,
        errors = errors || jsonb_build_object('at', clock_timestamp(), 'delivery', deliveries, 'error', $3::text)
    WHERE key = $1 AND token = $2 RETURNING number";

/// Relies on the messages' unique keys.
///
/// key
const PROVIDER_ID: &str = "SELECT provider_id FROM {schema}.onlyonce_outbox WHERE key = $1";

/// Relies on the index of dead letters.
///
/// limit
const DEAD_LETTERS: &str = "
    SELECT key, destination, payload, told.moments, told.deliveries, told.errors
    FROM {schema}.onlyonce_outbox AS message CROSS JOIN LATERAL (
        SELECT array_agg((error ->> 'at')::timestamptz ORDER BY place) AS moments,
               array_agg((error ->> 'delivery')::integer ORDER BY place) AS deliveries,
               array_agg(error ->> 'error' ORDER BY place) AS errors
        FROM jsonb_array_elements(message.errors) WITH ORDINALITY AS told (error, place)
    ) AS told
    WHERE state = 'dead' ORDER BY number LIMIT $1";

/// Settings that the promises depend on, as this session sees them.
const SETTINGS: &str = "
    SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')";
