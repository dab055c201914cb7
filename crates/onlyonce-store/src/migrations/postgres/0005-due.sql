-- What is to be looked at, and when: ids, many in a row. A record has no index but its primary key, so that its
-- completion leaves every index alone (a HOT update). A row is written with the records that it lists; whoever looks
-- at it when it is due lists them anew, by what has become of them. docs/decisions/0029-listed-when-due.md
CREATE TABLE {schema}.onlyonce_due (
    state  text NOT NULL,               -- of all of them, as they were last looked at; "new": nobody has looked yet
    due_at timestamptz NOT NULL,        -- of the first of them
    number bigint GENERATED ALWAYS AS IDENTITY,
    ids    bytea[] NOT NULL,
    PRIMARY KEY (state, due_at, number)
);

INSERT INTO {schema}.onlyonce_due (state, due_at, ids)
SELECT state, min(due_at), array_agg(id)
FROM (
    SELECT id, state, coalesce(due_at, clock_timestamp()) AS due_at,
           row_number() OVER (PARTITION BY state, date_trunc('minute', due_at) ORDER BY due_at) AS place
    FROM {schema}.onlyonce_record
) AS record
GROUP BY state, date_trunc('minute', due_at), place - place % 48;

DROP INDEX {schema}.onlyonce_record_by_due;

-- Room on its page for the completed version of a record.
ALTER TABLE {schema}.onlyonce_record SET (fillfactor = 45);
