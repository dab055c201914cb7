-- Records. What stands beside the record is for finding rows and for people with psql; what counts is the record.
-- docs/decisions/0019-postgres-layout.md has the figures.
CREATE TABLE {schema}.onlyonce_record (
    id         bytea PRIMARY KEY,       -- SHA-256 of scope and key
    revision   bigint NOT NULL,         -- all 64 bits, as a signed number
    written_at timestamptz NOT NULL,    -- by the clock of the server
    due_at     timestamptz,             -- when it wants attention next; null: never
    state      text NOT NULL,           -- for people, and to find what is due; never to judge by
    scope      bytea NOT NULL,
    label      text,
    key        text NOT NULL,
    route      text,
    record     bytea NOT NULL           -- everything, as codec.rs writes it
);

-- Due by state: the sweeper is not held up by a million expired records that wait for the reaper.
CREATE INDEX onlyonce_record_by_due ON {schema}.onlyonce_record (state, due_at);
