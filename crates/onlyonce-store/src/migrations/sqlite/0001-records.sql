-- Records. A row has a number of its own, so that rows stand in the order they came and only the index over the
-- (random) ids is written all over; docs/decisions/0013-sqlite-layout.md has the figures.
CREATE TABLE record (
    number     INTEGER PRIMARY KEY,
    id         BLOB NOT NULL,     -- SHA-256 of scope and key
    revision   INTEGER NOT NULL,  -- all 64 bits, as a signed number
    written_at INTEGER NOT NULL,  -- microseconds since the epoch, by the engine's clock
    due_at     INTEGER,           -- when it wants attention next; null: never
    state      TEXT NOT NULL,     -- for people, and to find what is due; never to judge by
    scope      BLOB NOT NULL,
    label      TEXT,
    key        TEXT NOT NULL,
    route      TEXT,
    record     BLOB NOT NULL      -- everything, as codec.rs writes it
) STRICT;

CREATE UNIQUE INDEX record_by_id ON record (id);

-- Due by state: the sweeper is not held up by a million expired records that wait for the reaper.
CREATE INDEX record_by_due ON record (state, due_at);

-- The latest stamp, so that the clock of the next process does not begin before it.
CREATE TABLE clock (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    latest INTEGER NOT NULL
) STRICT;
INSERT INTO clock (one, latest) VALUES (1, 0);
