-- Expired records that are kept for audit. Their keys may be used again, so an id may be here more than once.
CREATE TABLE {schema}.onlyonce_archive (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archived_at timestamptz NOT NULL,
    id          bytea NOT NULL,
    revision    bigint NOT NULL,
    written_at  timestamptz NOT NULL,
    state       text NOT NULL,
    scope       bytea NOT NULL,
    label       text,
    key         text NOT NULL,
    route       text,
    record      bytea NOT NULL
);

CREATE INDEX onlyonce_archive_by_id ON {schema}.onlyonce_archive (id, number);
