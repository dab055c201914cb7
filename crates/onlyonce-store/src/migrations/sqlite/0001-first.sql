-- Records, one a row; src/sql.rs describes the columns. Moments are microseconds since 1970, by the engine's clock.
-- A row has a number of its own, so that rows stand in the order they came and only the index over the (random) ids is
-- written all over. Small columns come first: they are read without the pages of a long answer.
CREATE TABLE onlyonce_record (
    number         INTEGER PRIMARY KEY,
    id             BLOB NOT NULL,     -- SHA-256 of scope and key
    revision       INTEGER NOT NULL,  -- changes with every write; all 64 bits, as a signed number
    scope          BLOB NOT NULL,
    label          TEXT,
    key            TEXT NOT NULL,
    route          TEXT,
    state          TEXT NOT NULL,     -- pending, running, completed, retryable, unknown
    attempt        INTEGER NOT NULL,
    token          BLOB NOT NULL,
    effects        TEXT NOT NULL,     -- local, keyed, queryable, opaque
    retention_us   INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    began_at       INTEGER NOT NULL,
    written_at     INTEGER NOT NULL,
    due_at         INTEGER,           -- when it wants attention next; null: never
    lapses_at      INTEGER,
    expires_at     INTEGER,
    unknown_since  INTEGER,
    reason         TEXT,
    dead_letter    INTEGER NOT NULL,
    completed_by   TEXT,
    recovery_point TEXT,
    status         INTEGER,
    key_id         BLOB,              -- the key that headers and body are encrypted with; null: they stand in clear
    rest_key_id    BLOB,              -- the same of answers in rest
    rest           BLOB NOT NULL,     -- terms, fingerprint, evidence, progress; versioned (src/codec.rs)
    headers        BLOB,              -- lines "name: value"
    body           BLOB
) STRICT;

CREATE UNIQUE INDEX onlyonce_record_by_id ON onlyonce_record (id);

-- Due by state: the sweeper is not held up by a million expired records that wait for the reaper.
CREATE INDEX onlyonce_record_by_due ON onlyonce_record (state, due_at);

-- The unknown ones, oldest first.
CREATE INDEX onlyonce_record_by_unknown ON onlyonce_record (unknown_since, id) WHERE unknown_since IS NOT NULL;

-- The pending ones, oldest first. No other record pays for it.
CREATE INDEX onlyonce_record_by_pending ON onlyonce_record (created_at, id) WHERE state = 'pending';

-- For people: moments as dates, digests in hex, no answers.
CREATE VIEW onlyonce_keys AS
SELECT lower(hex(id)) AS id, lower(hex(scope)) AS scope, label AS scope_label, key, route, state, attempt, effects,
       recovery_point, status, reason, lower(hex(key_id)) AS key_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', began_at / 1e6, 'unixepoch') AS began_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', written_at / 1e6, 'unixepoch') AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', unknown_since / 1e6, 'unixepoch') AS unknown_since,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1e6, 'unixepoch') AS expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1e6, 'unixepoch') AS due_at
FROM onlyonce_record;

-- Results of phases, each written with its recovery point. They go with the use of the key that they belong to.
CREATE TABLE onlyonce_result (
    record  BLOB NOT NULL,     -- the id of its record
    number  INTEGER NOT NULL,  -- from 1, in the order of the handler
    used_at INTEGER NOT NULL,  -- created_at of its record: which use of the key
    phase   TEXT NOT NULL,
    result  TEXT CHECK (length(CAST(result AS BLOB)) <= 65536), -- JSON
    sealed  BLOB CHECK (length(sealed) <= 65584), -- the same, encrypted: one of the two is null
    PRIMARY KEY (record, number)
) STRICT, WITHOUT ROWID;

-- Requests of accepted work, each written with its record. They are deleted with the write that ends the work.
CREATE TABLE onlyonce_request (
    record  BLOB PRIMARY KEY,  -- the id of its record
    used_at INTEGER NOT NULL,  -- created_at of its record: which use of the key
    request BLOB NOT NULL,     -- method, target, headers, body and route; src/seal.rs where it is encrypted
    key_id  BLOB               -- the key that it is encrypted with; null: in clear
) STRICT;

-- Messages stored with records.
CREATE TABLE onlyonce_outbox (
    number       INTEGER PRIMARY KEY AUTOINCREMENT, -- the order they were stored in
    key          TEXT NOT NULL,
    destination  TEXT NOT NULL,
    payload      BLOB,              -- null once delivered
    key_id       BLOB,              -- the key that the payload is encrypted with; null: it stands in clear
    content_type TEXT NOT NULL DEFAULT 'application/json',
    group_key    TEXT,              -- messages of one destination and group are delivered in order
    record       BLOB,              -- the id of the record it was stored with
    state        TEXT NOT NULL DEFAULT 'waiting', -- waiting, claimed, delivered, dead
    held         INTEGER NOT NULL DEFAULT 0, -- found behind another of its group; not looked at until that is settled
    deliveries   INTEGER NOT NULL DEFAULT 0,
    failures     INTEGER NOT NULL DEFAULT 0, -- deliveries that failed and count, since stored or redriven
    token        BLOB,              -- of the last claim that is not settled
    created_at   INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1e6 AS INTEGER)),
    due_at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1e6 AS INTEGER)), -- when it may be claimed; of a claim, when it lapses
    first_due_at INTEGER,           -- since stored or redriven; null before the first claim: due_at
    delivered_at INTEGER,
    provider_id  TEXT,
    errors       TEXT NOT NULL DEFAULT '[]' -- [{"at", "delivery", "status", "error"}], in order
) STRICT;

CREATE UNIQUE INDEX onlyonce_outbox_by_key ON onlyonce_outbox (key);
-- What is due and not behind another message, however many were delivered or wait behind one.
CREATE INDEX onlyonce_outbox_by_due ON onlyonce_outbox (destination, due_at, number)
    WHERE state IN ('waiting', 'claimed') AND held = 0;
-- The first of a group; and never two of one group at once.
CREATE INDEX onlyonce_outbox_by_group ON onlyonce_outbox (destination, group_key, number)
    WHERE state IN ('waiting', 'claimed') AND group_key IS NOT NULL;
CREATE UNIQUE INDEX onlyonce_outbox_one_at_a_time ON onlyonce_outbox (destination, group_key)
    WHERE state = 'claimed' AND group_key IS NOT NULL;
CREATE INDEX onlyonce_outbox_dead ON onlyonce_outbox (destination, group_key, number) WHERE state = 'dead';
-- For people and gauges, in the order they first fell due; and for the reaper.
CREATE INDEX onlyonce_outbox_by_first_due ON onlyonce_outbox (coalesce(first_due_at, due_at), number, state)
    WHERE state IN ('waiting', 'claimed');
CREATE INDEX onlyonce_outbox_delivered ON onlyonce_outbox (delivered_at, number) WHERE state = 'delivered';

-- For people: moments as dates, no payloads.
CREATE VIEW onlyonce_messages AS
SELECT number AS id, key, destination, group_key, state, deliveries,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1e6, 'unixepoch') AS due_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', delivered_at / 1e6, 'unixepoch') AS delivered_at, provider_id,
       (SELECT json_group_array(json_set(error.value, '$.at',
                   strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(error.value, '$.at') / 1e6, 'unixepoch')))
        FROM json_each(errors) AS error) AS errors,
       lower(hex(record)) AS record
FROM onlyonce_outbox;

-- Expired records that are kept for audit. Their keys may be used again, so an id may be here more than once.
CREATE TABLE onlyonce_archive (
    number         INTEGER PRIMARY KEY,
    archived_at    INTEGER NOT NULL,
    id             BLOB NOT NULL,
    revision       INTEGER NOT NULL,
    scope          BLOB NOT NULL,
    label          TEXT,
    key            TEXT NOT NULL,
    route          TEXT,
    state          TEXT NOT NULL,
    attempt        INTEGER NOT NULL,
    token          BLOB NOT NULL,
    effects        TEXT NOT NULL,
    retention_us   INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    began_at       INTEGER NOT NULL,
    written_at     INTEGER NOT NULL,
    due_at         INTEGER,
    lapses_at      INTEGER,
    expires_at     INTEGER,
    unknown_since  INTEGER,
    reason         TEXT,
    dead_letter    INTEGER NOT NULL,
    completed_by   TEXT,
    recovery_point TEXT,
    status         INTEGER,
    key_id         BLOB,
    rest_key_id    BLOB,
    rest           BLOB NOT NULL,
    headers        BLOB,
    body           BLOB
) STRICT;

CREATE INDEX onlyonce_archive_by_id ON onlyonce_archive (id);
-- To erase a scope. No request pays for it: rows come here from the reaper.
CREATE INDEX onlyonce_archive_by_scope ON onlyonce_archive (scope);

-- What operators changed, one entry a row: who, when, what and why. Entries are deleted by age and by nothing else.
CREATE TABLE onlyonce_audit (
    number       INTEGER PRIMARY KEY, -- the order they were written in
    id           TEXT NOT NULL,
    at           INTEGER NOT NULL,
    who          TEXT NOT NULL,       -- whose token it was, or local
    role         TEXT NOT NULL,
    claims       TEXT,                -- what the person calls itself; nobody has verified it
    from_address TEXT,
    via          TEXT NOT NULL,       -- api, cli, store
    action       TEXT NOT NULL,       -- verdict, forget, purge, ...
    scope        TEXT,                -- in hex, as is record
    scope_label  TEXT,                -- null, as is key, once the scope was erased
    key          TEXT,
    record       TEXT,
    reason       TEXT,
    forced       INTEGER NOT NULL,
    before       TEXT,                -- how the record stood, as JSON
    after        TEXT,
    result       TEXT NOT NULL,       -- applied, noted, refused
    code         TEXT                 -- why it was refused
) STRICT;

CREATE UNIQUE INDEX onlyonce_audit_by_id ON onlyonce_audit (id);
CREATE INDEX onlyonce_audit_by_time ON onlyonce_audit (at, number);
CREATE INDEX onlyonce_audit_by_scope ON onlyonce_audit (scope) WHERE scope IS NOT NULL;

-- For people: the same with dates, newest first.
CREATE VIEW onlyonce_log AS
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', at / 1e6, 'unixepoch') AS at, who, role, claims, from_address, via, action,
       scope, scope_label, key, record, reason, forced, before, after, result, code, id
FROM onlyonce_audit ORDER BY onlyonce_audit.at DESC, number DESC;

-- The store itself: its name, the epoch of copies, and the latest stamp, before which the clock of the next process does
-- not begin.
CREATE TABLE onlyonce_store (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    name   BLOB NOT NULL,
    epoch  INTEGER NOT NULL,
    latest INTEGER NOT NULL
) STRICT;
INSERT INTO onlyonce_store (one, name, epoch, latest) VALUES (1, randomblob(16), 1, 0);
