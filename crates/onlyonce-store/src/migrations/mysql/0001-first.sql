-- Records, one a row; src/sql.rs describes the columns. Moments are microseconds since 1970, by the server's clock: no time
-- zone and no 2038. Text is bytes in UTF-8: no collation folds case, accents or blanks. Every statement here may be run twice.
CREATE TABLE IF NOT EXISTS onlyonce_record (
    id             BINARY(32) NOT NULL PRIMARY KEY, -- SHA-256 of scope and key
    revision       BIGINT NOT NULL,      -- changes with every write; all 64 bits, as a signed number
    attempt        BIGINT NOT NULL,
    retention_us   BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    began_at       BIGINT NOT NULL,
    written_at     BIGINT NOT NULL,
    due_at         BIGINT,               -- when it wants attention next; null: never
    lapses_at      BIGINT,
    expires_at     BIGINT,
    unknown_since  BIGINT,
    status         INT,
    dead_letter    BOOLEAN NOT NULL,
    state          VARBINARY(16) NOT NULL, -- pending, running, completed, retryable, unknown
    token          BINARY(16) NOT NULL,
    effects        VARBINARY(16) NOT NULL, -- local, keyed, queryable, opaque
    scope          BINARY(32) NOT NULL,
    label          VARBINARY(4096),
    `key`          VARBINARY(4096) NOT NULL,
    route          VARBINARY(4096),
    reason         VARBINARY(255),
    completed_by   VARBINARY(32),
    recovery_point VARBINARY(4096),
    key_id         BINARY(8),            -- the key that headers and body are encrypted with; null: they stand in clear
    rest_key_id    BINARY(8),            -- the same of answers in rest
    rest           LONGBLOB NOT NULL,    -- terms, fingerprint, evidence, progress; versioned (src/codec.rs)
    headers        LONGBLOB,             -- lines "name: value"
    body           LONGBLOB,
    -- Due by state: the sweeper is not held up by a million expired records that wait for the reaper.
    KEY onlyonce_record_by_due (state, due_at, id),
    -- The pending ones, oldest first.
    KEY onlyonce_record_by_creation (state, created_at, id),
    -- The unknown ones, oldest first.
    KEY onlyonce_record_by_unknown (unknown_since, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- For people: moments as dates in UTC, digests in hex, no answers.
CREATE OR REPLACE VIEW onlyonce_keys AS
SELECT LOWER(HEX(id)) AS id, LOWER(HEX(scope)) AS scope, CONVERT(label USING utf8mb4) AS scope_label,
       CONVERT(`key` USING utf8mb4) AS `key`, CONVERT(route USING utf8mb4) AS route, CONVERT(state USING utf8mb4) AS state,
       attempt, CONVERT(effects USING utf8mb4) AS effects, CONVERT(recovery_point USING utf8mb4) AS recovery_point, status,
       CONVERT(reason USING utf8mb4) AS reason, LOWER(HEX(key_id)) AS key_id,
       TIMESTAMPADD(MICROSECOND, created_at, '1970-01-01') AS created_at,
       TIMESTAMPADD(MICROSECOND, began_at, '1970-01-01') AS began_at,
       TIMESTAMPADD(MICROSECOND, written_at, '1970-01-01') AS updated_at,
       TIMESTAMPADD(MICROSECOND, unknown_since, '1970-01-01') AS unknown_since,
       TIMESTAMPADD(MICROSECOND, expires_at, '1970-01-01') AS expires_at,
       TIMESTAMPADD(MICROSECOND, due_at, '1970-01-01') AS due_at
FROM onlyonce_record;

-- Results of phases, each written with its recovery point. They go with the use of the key that they belong to.
CREATE TABLE IF NOT EXISTS onlyonce_result (
    record  BINARY(32) NOT NULL,      -- the id of its record
    number  INT NOT NULL,             -- from 1, in the order of the handler
    used_at BIGINT NOT NULL,          -- created_at of its record: which use of the key
    phase   VARBINARY(4096) NOT NULL,
    result  MEDIUMBLOB CHECK (OCTET_LENGTH(result) <= 65536), -- JSON
    sealed  MEDIUMBLOB CHECK (OCTET_LENGTH(sealed) <= 65584), -- the same, encrypted
    PRIMARY KEY (record, number),
    CHECK ((result IS NULL) <> (sealed IS NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Requests of accepted work, each written with its record. They are deleted with the write that ends the work.
CREATE TABLE IF NOT EXISTS onlyonce_request (
    record  BINARY(32) NOT NULL PRIMARY KEY, -- the id of its record
    used_at BIGINT NOT NULL,          -- created_at of its record: which use of the key
    request LONGBLOB NOT NULL,        -- method, target, headers, body and route; src/seal.rs where it is encrypted
    key_id  BINARY(8)                 -- the key that it is encrypted with; null: in clear
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Messages stored with records. Anybody may store one: a plain INSERT of destination and payload is delivered. There are no
-- partial indexes here, so the last columns are null for what an index leaves out.
CREATE TABLE IF NOT EXISTS onlyonce_outbox (
    number        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, -- about the order they were stored in
    `key`         VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT (UUID())
                      CHECK (CHAR_LENGTH(`key`) > 0 AND `key` NOT REGEXP _ascii'[^A-Za-z0-9_:-]'),
    destination   VARBINARY(1020) NOT NULL CHECK (CHAR_LENGTH(CONVERT(destination USING utf8mb4)) BETWEEN 1 AND 255),
    payload       LONGBLOB,                    -- null once delivered
    key_id        BINARY(8),                   -- the key that the payload is encrypted with; null: it stands in clear
    content_type  VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'application/json'
                      CHECK (CHAR_LENGTH(content_type) > 0 AND content_type NOT REGEXP _ascii'[^ -~]'), -- sent as a header
    group_key     VARBINARY(1020) CHECK (CHAR_LENGTH(CONVERT(group_key USING utf8mb4)) BETWEEN 1 AND 255), -- order within destination and group
    record        BINARY(32),                  -- the id of the record it was stored with
    state         VARBINARY(16) NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'claimed', 'delivered', 'dead')),
    held          BOOLEAN NOT NULL DEFAULT FALSE, -- found behind another of its group; not looked at until that is settled
    deliveries    INT NOT NULL DEFAULT 0,
    failures      INT NOT NULL DEFAULT 0,      -- deliveries that failed and count, since stored or redriven
    token         BINARY(16),                  -- of the last claim that is not settled
    created_at    BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    due_at        BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), -- when it may be claimed; of a claim, when it lapses
    first_due_at  BIGINT,                      -- since stored or redriven; null before the first claim: due_at
    delivered_at  BIGINT,
    provider_id   BLOB,
    errors        JSON NOT NULL DEFAULT (JSON_ARRAY()), -- [{"at", "delivery", "status", "error"}]
    ready_at      BIGINT AS (IF(state IN ('waiting', 'claimed') AND NOT held, due_at, NULL)) STORED,
    waiting_since BIGINT AS (IF(state IN ('waiting', 'claimed'), COALESCE(first_due_at, due_at), NULL)) STORED,
    open_group    VARBINARY(1020) AS (IF(state IN ('waiting', 'claimed'), group_key, NULL)) STORED,
    claimed_group VARBINARY(1020) AS (IF(state = 'claimed', group_key, NULL)) STORED,
    UNIQUE KEY onlyonce_outbox_by_key (`key`),
    -- What is due and not behind another message, however many were delivered or wait behind one.
    KEY onlyonce_outbox_by_due (destination, ready_at, number),
    -- The first of a group; and never two of one group at once, whatever was committed meanwhile.
    KEY onlyonce_outbox_by_group (destination, open_group, number),
    UNIQUE KEY onlyonce_outbox_one_at_a_time (destination, claimed_group),
    KEY onlyonce_outbox_by_state (state, destination, group_key, number),
    -- For people and gauges, in the order they first fell due; and for the reaper.
    KEY onlyonce_outbox_by_first_due (waiting_since, number, state),
    KEY onlyonce_outbox_delivered (delivered_at, number),
    CHECK (OCTET_LENGTH(payload) <= IF(key_id IS NULL, 1048576, 1048624)),
    CHECK (payload IS NOT NULL OR state = 'delivered')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- For people: moments as dates in UTC, no payloads.
CREATE OR REPLACE VIEW onlyonce_messages AS
SELECT number AS id, `key`, CONVERT(destination USING utf8mb4) AS destination, CONVERT(group_key USING utf8mb4) AS group_key,
       CONVERT(state USING utf8mb4) AS state, deliveries, TIMESTAMPADD(MICROSECOND, created_at, '1970-01-01') AS created_at,
       TIMESTAMPADD(MICROSECOND, due_at, '1970-01-01') AS due_at,
       TIMESTAMPADD(MICROSECOND, delivered_at, '1970-01-01') AS delivered_at,
       CONVERT(provider_id USING utf8mb4) AS provider_id, errors, LOWER(HEX(record)) AS record
FROM onlyonce_outbox;

-- Expired records that are kept for audit. Their keys may be used again, so an id may be here more than once.
CREATE TABLE IF NOT EXISTS onlyonce_archive (
    number         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    archived_at    BIGINT NOT NULL,
    id             BINARY(32) NOT NULL,
    revision       BIGINT NOT NULL,
    attempt        BIGINT NOT NULL,
    retention_us   BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    began_at       BIGINT NOT NULL,
    written_at     BIGINT NOT NULL,
    due_at         BIGINT,
    lapses_at      BIGINT,
    expires_at     BIGINT,
    unknown_since  BIGINT,
    status         INT,
    dead_letter    BOOLEAN NOT NULL,
    state          VARBINARY(16) NOT NULL,
    token          BINARY(16) NOT NULL,
    effects        VARBINARY(16) NOT NULL,
    scope          BINARY(32) NOT NULL,
    label          VARBINARY(4096),
    `key`          VARBINARY(4096) NOT NULL,
    route          VARBINARY(4096),
    reason         VARBINARY(255),
    completed_by   VARBINARY(32),
    recovery_point VARBINARY(4096),
    key_id         BINARY(8),
    rest_key_id    BINARY(8),
    rest           LONGBLOB NOT NULL,
    headers        LONGBLOB,
    body           LONGBLOB,
    KEY onlyonce_archive_by_id (id, number),
    -- To erase a scope. No request pays for it: rows come here from the reaper.
    KEY onlyonce_archive_by_scope (scope)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What operators changed, one entry a row: who, when, what and why. Entries are deleted by age and by nothing else.
CREATE TABLE IF NOT EXISTS onlyonce_audit (
    number       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, -- about the order they were written in
    id           VARBINARY(255) NOT NULL,
    at           BIGINT NOT NULL,
    who          BLOB NOT NULL,      -- whose token it was, or local
    role         BLOB NOT NULL,
    claims       BLOB,               -- what the person calls itself; nobody has verified it
    from_address BLOB,
    via          BLOB NOT NULL,      -- api, cli, store
    action       BLOB NOT NULL,      -- verdict, forget, purge, ...
    scope        VARBINARY(64),      -- in hex, as is record
    scope_label  BLOB,               -- null, as is key, once the scope was erased
    `key`        BLOB,
    record       VARBINARY(64),
    reason       BLOB,
    forced       BOOLEAN NOT NULL,
    `before`     MEDIUMBLOB,         -- how the record stood, as JSON
    after        MEDIUMBLOB,
    result       BLOB NOT NULL,      -- applied, noted, refused
    code         BLOB,               -- why it was refused
    UNIQUE KEY onlyonce_audit_by_id (id),
    KEY onlyonce_audit_by_time (at, number),
    KEY onlyonce_audit_by_scope (scope)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- For people: newest first.
CREATE OR REPLACE VIEW onlyonce_log AS
SELECT TIMESTAMPADD(MICROSECOND, at, '1970-01-01') AS at, CONVERT(who USING utf8mb4) AS who,
       CONVERT(role USING utf8mb4) AS role, CONVERT(claims USING utf8mb4) AS claims,
       CONVERT(from_address USING utf8mb4) AS from_address, CONVERT(via USING utf8mb4) AS via,
       CONVERT(action USING utf8mb4) AS action, CONVERT(scope USING utf8mb4) AS scope,
       CONVERT(scope_label USING utf8mb4) AS scope_label, CONVERT(`key` USING utf8mb4) AS `key`,
       CONVERT(record USING utf8mb4) AS record, CONVERT(reason USING utf8mb4) AS reason, forced,
       CONVERT(`before` USING utf8mb4) AS `before`, CONVERT(after USING utf8mb4) AS after,
       CONVERT(result USING utf8mb4) AS result, CONVERT(code USING utf8mb4) AS code, CONVERT(id USING utf8mb4) AS id
FROM onlyonce_audit ORDER BY onlyonce_audit.at DESC, number DESC;

-- The store itself: its name, and the epoch by which nodes know that their copies of completed records are no longer to be
-- believed.
CREATE TABLE IF NOT EXISTS onlyonce_store (
    one   INT NOT NULL PRIMARY KEY CHECK (one = 1),
    name  BINARY(16) NOT NULL,
    epoch BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT INTO onlyonce_store (one, name, epoch)
VALUES (1, UNHEX(SUBSTR(SHA2(CONCAT(UUID(), RAND(), RAND(), RAND(), RAND(), UUID()), 256), 1, 32)), 1)
ON DUPLICATE KEY UPDATE one = one;
