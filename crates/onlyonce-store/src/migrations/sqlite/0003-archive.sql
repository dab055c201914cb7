-- Expired records that are kept for audit. Their keys may be used again, so an id may be here more than once.
CREATE TABLE archive (
    number      INTEGER PRIMARY KEY,
    archived_at INTEGER NOT NULL,
    id          BLOB NOT NULL,
    revision    INTEGER NOT NULL,
    written_at  INTEGER NOT NULL,
    state       TEXT NOT NULL,
    scope       BLOB NOT NULL,
    label       TEXT,
    key         TEXT NOT NULL,
    route       TEXT,
    record      BLOB NOT NULL
) STRICT;

CREATE INDEX archive_by_id ON archive (id);
