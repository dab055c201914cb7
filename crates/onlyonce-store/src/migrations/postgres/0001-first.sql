-- Records, one a row; src/sql.rs describes the columns. Moments are by the server's clock. Large columns stand last: the
-- others are read without them.
CREATE TABLE {schema}.onlyonce_record (
    id             bytea PRIMARY KEY CHECK (octet_length(id) = 32), -- SHA-256 of scope and key
    revision       bigint NOT NULL,      -- changes with every write; all 64 bits, as a signed number
    attempt        bigint NOT NULL,
    retention_us   bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    began_at       timestamptz NOT NULL,
    written_at     timestamptz NOT NULL,
    due_at         timestamptz,          -- when it wants attention next; null: never
    lapses_at      timestamptz,
    expires_at     timestamptz,
    unknown_since  timestamptz,
    status         integer,
    dead_letter    boolean NOT NULL,
    state          text NOT NULL,        -- pending, running, completed, retryable, unknown
    token          bytea NOT NULL,
    effects        text NOT NULL,        -- local, keyed, queryable, opaque
    scope          bytea NOT NULL,
    label          text,
    key            text NOT NULL,
    route          text,
    reason         text,
    completed_by   text,
    recovery_point text,
    key_id         bytea,                -- the key that headers and body are encrypted with; null: they stand in clear
    rest_key_id    bytea,                -- the same of answers in rest
    rest           bytea NOT NULL,       -- terms, fingerprint, evidence, progress; versioned (src/codec.rs)
    headers        bytea,                -- lines "name: value"
    body           bytea
);

-- Due by state: the sweeper is not held up by a million expired records that wait for the reaper.
CREATE INDEX onlyonce_record_by_due ON {schema}.onlyonce_record (state, due_at);

-- The unknown ones, oldest first.
CREATE INDEX onlyonce_record_by_unknown ON {schema}.onlyonce_record (unknown_since, id) WHERE unknown_since IS NOT NULL;

-- The pending ones, oldest first. No other record pays for it.
CREATE INDEX onlyonce_record_by_pending ON {schema}.onlyonce_record (created_at, id) WHERE state = 'pending';

-- For people: digests in hex, no answers.
CREATE VIEW {schema}.onlyonce_keys AS
SELECT encode(id, 'hex') AS id, encode(scope, 'hex') AS scope, label AS scope_label, key, route, state, attempt, effects,
       recovery_point, status, reason, encode(key_id, 'hex') AS key_id, created_at, began_at, written_at AS updated_at, unknown_since, expires_at, due_at
FROM {schema}.onlyonce_record;

-- Results of phases, each written with its recovery point. They go with the use of the key that they belong to.
CREATE TABLE {schema}.onlyonce_result (
    record  bytea NOT NULL,       -- the id of its record
    number  integer NOT NULL,     -- from 1, in the order of the handler
    used_at timestamptz NOT NULL, -- created_at of its record: which use of the key
    phase   text NOT NULL,
    result  text CHECK (octet_length(result) <= 65536), -- JSON
    sealed  bytea CHECK (octet_length(sealed) <= 65584), -- the same, encrypted
    PRIMARY KEY (record, number),
    CHECK ((result IS NULL) <> (sealed IS NULL))
);

-- Requests of accepted work, each written with its record. They are deleted with the write that ends the work.
CREATE TABLE {schema}.onlyonce_request (
    record  bytea PRIMARY KEY,    -- the id of its record
    used_at timestamptz NOT NULL, -- created_at of its record: which use of the key
    request bytea NOT NULL,       -- method, target, headers, body and route; src/seal.rs where it is encrypted
    key_id  bytea                 -- the key that it is encrypted with; null: in clear
);

-- Messages stored with records. Anybody may store one: a plain INSERT of destination and payload is delivered.
CREATE TABLE {schema}.onlyonce_outbox (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- about the order they were stored in
    key          text NOT NULL DEFAULT gen_random_uuid()::text UNIQUE CHECK (key ~ '^[A-Za-z0-9_:-]+$' AND length(key) <= 128),
    destination  text NOT NULL CHECK (char_length(destination) BETWEEN 1 AND 255),
    payload      bytea,                                          -- null once delivered
    key_id       bytea,                                          -- the key that the payload is encrypted with; null: it stands in clear
    content_type text NOT NULL DEFAULT 'application/json' CHECK (content_type ~ '^[ -~]+$' AND length(content_type) <= 255), -- sent as a header
    group_key    text CHECK (char_length(group_key) BETWEEN 1 AND 255), -- order within destination and group
    record       bytea,                                          -- the id of the record it was stored with
    state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'claimed', 'delivered', 'dead')),
    held         boolean NOT NULL DEFAULT false,                 -- found behind another of its group; not looked at until that is settled
    deliveries   integer NOT NULL DEFAULT 0,
    failures     integer NOT NULL DEFAULT 0,                     -- deliveries that failed and count, since stored or redriven
    token        bytea,                                          -- of the last claim that is not settled
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(), -- when it may be claimed; of a claim, when it lapses
    first_due_at timestamptz,                                    -- since stored or redriven; null before the first claim: due_at
    delivered_at timestamptz,
    provider_id  text,
    errors       jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(errors) = 'array'), -- [{"at", "delivery", "status", "error"}]
    CHECK (octet_length(payload) <= CASE WHEN key_id IS NULL THEN 1048576 ELSE 1048624 END),
    CHECK (payload IS NOT NULL OR state = 'delivered'),
    CHECK (isfinite(due_at))
);

-- What is due and not behind another message, however many were delivered or wait behind one.
CREATE INDEX onlyonce_outbox_by_due ON {schema}.onlyonce_outbox (destination, due_at, number)
    WHERE state IN ('waiting', 'claimed') AND NOT held;
-- The first of a group; and never two of one group at once, whatever was committed meanwhile.
CREATE INDEX onlyonce_outbox_by_group ON {schema}.onlyonce_outbox (destination, group_key, number)
    WHERE state IN ('waiting', 'claimed') AND group_key IS NOT NULL;
CREATE UNIQUE INDEX onlyonce_outbox_one_at_a_time ON {schema}.onlyonce_outbox (destination, group_key)
    WHERE state = 'claimed' AND group_key IS NOT NULL;
CREATE INDEX onlyonce_outbox_dead ON {schema}.onlyonce_outbox (destination, group_key, number) WHERE state = 'dead';
-- For people and gauges, in the order they first fell due; and for the reaper.
CREATE INDEX onlyonce_outbox_by_first_due ON {schema}.onlyonce_outbox (coalesce(first_due_at, due_at), number, state)
    WHERE state IN ('waiting', 'claimed');
CREATE INDEX onlyonce_outbox_delivered ON {schema}.onlyonce_outbox (delivered_at, number) WHERE state = 'delivered';

-- For people: no payloads.
CREATE VIEW {schema}.onlyonce_messages AS
SELECT number AS id, key, destination, group_key, state, deliveries, created_at, due_at, delivered_at, provider_id, errors,
       encode(record, 'hex') AS record
FROM {schema}.onlyonce_outbox;

-- Expired records that are kept for audit. Their keys may be used again, so an id may be here more than once.
CREATE TABLE {schema}.onlyonce_archive (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archived_at    timestamptz NOT NULL,
    id             bytea NOT NULL,
    revision       bigint NOT NULL,
    attempt        bigint NOT NULL,
    retention_us   bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    began_at       timestamptz NOT NULL,
    written_at     timestamptz NOT NULL,
    due_at         timestamptz,
    lapses_at      timestamptz,
    expires_at     timestamptz,
    unknown_since  timestamptz,
    status         integer,
    dead_letter    boolean NOT NULL,
    state          text NOT NULL,
    token          bytea NOT NULL,
    effects        text NOT NULL,
    scope          bytea NOT NULL,
    label          text,
    key            text NOT NULL,
    route          text,
    reason         text,
    completed_by   text,
    recovery_point text,
    key_id         bytea,
    rest_key_id    bytea,
    rest           bytea NOT NULL,
    headers        bytea,
    body           bytea
);

CREATE INDEX onlyonce_archive_by_id ON {schema}.onlyonce_archive (id, number);
-- To erase a scope. No request pays for it: rows come here from the reaper.
CREATE INDEX onlyonce_archive_by_scope ON {schema}.onlyonce_archive (scope);

-- What operators changed, one entry a row: who, when, what and why. Entries are deleted by age and by nothing else.
CREATE TABLE {schema}.onlyonce_audit (
    id           text PRIMARY KEY,
    number       bigint GENERATED ALWAYS AS IDENTITY, -- about the order they were written in
    at           timestamptz NOT NULL,
    who          text NOT NULL,      -- whose token it was, or local
    role         text NOT NULL,
    claims       text,               -- what the person calls itself; nobody has verified it
    from_address text,
    via          text NOT NULL,      -- api, cli, store
    action       text NOT NULL,      -- verdict, forget, purge, ...
    scope        text,               -- in hex, as is record
    scope_label  text,               -- null, as is key, once the scope was erased
    key          text,
    record       text,
    reason       text,
    forced       boolean NOT NULL,
    before       text,               -- how the record stood, as JSON
    after        text,
    result       text NOT NULL,      -- applied, noted, refused
    code         text                -- why it was refused
);

CREATE INDEX onlyonce_audit_by_time ON {schema}.onlyonce_audit (at, number);
CREATE INDEX onlyonce_audit_by_scope ON {schema}.onlyonce_audit (scope) WHERE scope IS NOT NULL;

-- For people: newest first.
CREATE VIEW {schema}.onlyonce_log AS
SELECT at, who, role, claims, from_address, via, action, scope, scope_label, key, record, reason, forced, before, after,
       result, code, id
FROM {schema}.onlyonce_audit ORDER BY at DESC, number DESC;

-- The store itself: its name, and the epoch by which nodes know that their copies of completed records are no longer to be
-- believed.
CREATE TABLE {schema}.onlyonce_store (
    one   integer PRIMARY KEY CHECK (one = 1),
    name  bytea NOT NULL CHECK (octet_length(name) = 16),
    epoch bigint NOT NULL
);

-- Two of them, since a UUID has bits that are not random.
INSERT INTO {schema}.onlyonce_store (one, name, epoch)
SELECT 1, substring(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')) FROM 1 FOR 16), 1;
