-- By this nodes know that their copies of completed records are no longer to be believed: a completed record was
-- forgotten, or judged anew. A release that does not look at it would go on replaying what was forgotten.
CREATE TABLE {schema}.onlyonce_epoch (
    one   integer PRIMARY KEY CHECK (one = 1),
    epoch bigint NOT NULL
);

INSERT INTO {schema}.onlyonce_epoch (one, epoch) VALUES (1, 1);
