-- A record that was written alone lists itself, with an entry of an index, until somebody lists it with others: a row of the
-- list for it alone would be a third of the work that its caller waits for. The entry leaves with the first look, so
-- that a completion still changes no index. docs/decisions/0032-lone-writes.md
ALTER TABLE {schema}.onlyonce_record
    ADD COLUMN look_at timestamptz;     -- when it is looked at for the first time; null: a row of the list says when

CREATE INDEX onlyonce_record_by_look ON {schema}.onlyonce_record (look_at) WHERE look_at IS NOT NULL;
