-- Messages stored with records. Whoever claims one holds it until due_at.
CREATE TABLE {schema}.onlyonce_outbox (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- about the order they were stored in
    key         text NOT NULL UNIQUE,
    destination text NOT NULL,
    payload     bytea NOT NULL,
    delivery    bigint NOT NULL DEFAULT 0,
    token       bytea,                  -- of the last claim that is not settled
    due_at      timestamptz,            -- when it may be claimed; null: a dead letter
    errors      text[] NOT NULL DEFAULT '{}'
);

CREATE INDEX onlyonce_outbox_by_due ON {schema}.onlyonce_outbox (due_at, number);
