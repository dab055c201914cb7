-- What becomes durable first: two files beside this one (tape.rs), carried over into it round by round.
CREATE TABLE intake (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    identity BLOB NOT NULL,     -- 16 random bytes: whose tapes these are. A copy of this file has others
    carried  INTEGER NOT NULL,  -- the last round that was carried over
    is_open  INTEGER NOT NULL   -- somebody has, or had when it died, the file: its tapes must be there
) STRICT;
INSERT INTO intake (one, identity, carried, is_open) VALUES (1, randomblob(16), 0, 0);
