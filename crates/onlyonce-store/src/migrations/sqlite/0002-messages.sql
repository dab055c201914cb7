-- Messages stored with records. Whoever claims one holds it until due_at.
CREATE TABLE message (
    number      INTEGER PRIMARY KEY AUTOINCREMENT, -- the order they were stored in
    key         TEXT NOT NULL,
    destination TEXT NOT NULL,
    payload     BLOB NOT NULL,
    delivery    INTEGER NOT NULL DEFAULT 0,
    token       BLOB,             -- of the last claim that is not settled
    due_at      INTEGER           -- when it may be claimed; null: a dead letter
) STRICT;

CREATE UNIQUE INDEX message_by_key ON message (key);
CREATE INDEX message_by_due ON message (due_at, number);

-- Every error of a message, in order.
CREATE TABLE message_error (
    message INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    error   TEXT NOT NULL,
    PRIMARY KEY (message, number)
) STRICT, WITHOUT ROWID;
