-- What an application calls in its own transaction: docs/guide.md, "One transaction".
--
-- 1. The functions run with the rights of the schema's owner, so a role that may call them needs no right on any table. Every
--    object is named with its schema and search_path is fixed: nothing of the caller's is used in its place.
-- 2. They rely on no setting of the caller's session: no backslash stands in a plain string, moments are added up in UTC, and
--    names are put in lower case by the rules of ASCII.
-- 3. One signature a name, so that parameters without a type resolve. A new parameter is a new function.
-- 4. A handle appears in no message.

-- Locks the record of a handle and refuses whoever may not complete it: machine::finish with a completed outcome.
-- Relies on the primary key. At READ COMMITTED a row that changed while this waited for its lock is judged as it stands then.
CREATE OR REPLACE FUNCTION {schema}.onlyonce_hold(handle text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    found_state text;
BEGIN
    IF onlyonce_hold.handle IS NULL OR onlyonce_hold.handle !~ '^[0-9a-f]+[.][0-9a-f]+$'
        OR strpos(onlyonce_hold.handle, '.') <> 65 OR length(onlyonce_hold.handle) <> 97 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'onlyonce: the handle is malformed',
            HINT = 'Pass the header Onlyonce-Token of the request as it came.';
    END IF;
    SELECT record.state INTO found_state FROM {schema}.onlyonce_record AS record
    WHERE record.id = decode(left(onlyonce_hold.handle, 64), 'hex')
      AND record.token = decode(right(onlyonce_hold.handle, 32), 'hex')
    FOR NO KEY UPDATE;
    IF found_state IN ('running', 'unknown', 'retryable') THEN
        RETURN;
    END IF;
    IF found_state = 'completed' THEN
        RAISE EXCEPTION USING ERRCODE = 'OO002', MESSAGE = 'onlyonce: this attempt has completed already',
            HINT = 'Roll back. The stored answer goes out, whatever is answered now.';
    END IF;
    -- One text for all, so that nobody learns which records exist. The token of a pending record is not an attempt's.
    RAISE EXCEPTION USING ERRCODE = 'OO001',
        MESSAGE = 'onlyonce: this attempt may no longer complete: a later attempt has begun, or the record is gone',
        HINT = 'Roll back. The answer of the later attempt goes out, where there is one.';
END
$function$;

-- Completes the attempt of a handle. Sets the columns that sql.rs gives to a completed record, and nothing else.
-- A body of NULL: completed, and no answer is stored.
CREATE OR REPLACE FUNCTION {schema}.onlyonce_complete(
    handle text, status integer, headers jsonb DEFAULT '{}', body bytea DEFAULT '', retention interval DEFAULT NULL
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    lines   bytea := '';
    header  record;
    value   jsonb;
    digits  text;
    stamp   timestamptz;
    keep    interval;
    expires timestamptz;
BEGIN
    IF onlyonce_complete.status IS NULL OR onlyonce_complete.status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('onlyonce: status %s is not between 200 and 599',
                             coalesce(onlyonce_complete.status::text, 'null'));
    END IF;
    IF jsonb_typeof(onlyonce_complete.headers) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'onlyonce: headers are not a JSON object',
            HINT = 'Pass {"content-type": "application/json"}, for example; a value is a string or a list of strings.';
    END IF;
    IF octet_length(onlyonce_complete.body) > 8388608 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = format('onlyonce: a body of %s bytes is too large; at most 8388608 are stored',
                             octet_length(onlyonce_complete.body)),
            HINT = 'Pass NULL to complete without a stored answer.';
    END IF;
    IF onlyonce_complete.retention < interval '0' THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('onlyonce: retention %s is negative', onlyonce_complete.retention);
    END IF;

    FOR header IN
        SELECT lower(told.name COLLATE "C") AS name, told.value
        FROM jsonb_each(onlyonce_complete.headers) AS told (name, value)
    LOOP
        IF header.name !~ '^[a-z0-9!#$%&''*+.^_`|~-]+$' OR octet_length(header.name) > 256 THEN
            RAISE EXCEPTION USING ERRCODE = '22023',
                MESSAGE = format('onlyonce: "%s" is no name of a header', left(header.name, 80));
        END IF;
        -- True only of one connection, of the first answer, of the caller, or ours.
        CONTINUE WHEN header.name IN (
            'connection', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'proxy-connection',
            'content-length', 'date', 'age', 'set-cookie',
            'authorization', 'www-authenticate', 'authentication-info', 'proxy-authentication-info'
        ) OR starts_with(header.name, 'onlyonce-') OR starts_with(header.name, 'idempoten');
        IF jsonb_typeof(header.value) <> 'array' THEN
            header.value := jsonb_build_array(header.value);
        END IF;
        FOR place IN 0 .. jsonb_array_length(header.value) - 1 LOOP
            value := header.value -> place;
            IF jsonb_typeof(value) <> 'string' THEN
                RAISE EXCEPTION USING ERRCODE = '22023',
                    MESSAGE = format('onlyonce: header "%s" is neither a string nor a list of strings', header.name);
            END IF;
            IF value #>> '{}' ~ E'[\u0001-\u0008\u000a-\u001f\u007f]' THEN
                RAISE EXCEPTION USING ERRCODE = '22023',
                    MESSAGE = format('onlyonce: header "%s" has a control character in its value', header.name);
            END IF;
            lines := lines || convert_to(header.name || ': ' || (value #>> '{}') || chr(10), 'UTF8');
        END LOOP;
    END LOOP;
    IF octet_length(lines) > 65536 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = format('onlyonce: headers of %s bytes are too large; at most 65536 are stored',
                             octet_length(lines));
    END IF;

    PERFORM {schema}.onlyonce_hold(onlyonce_complete.handle);
    -- The row is ours until the transaction ends. Days are added in UTC, where each has 24 hours.
    SELECT greatest(clock_timestamp(), record.written_at),
           coalesce(onlyonce_complete.retention,
                    make_interval(days => (record.retention_us / 86400000000)::integer)
                        + record.retention_us % 86400000000 * interval '1 microsecond')
    INTO stamp, keep
    FROM {schema}.onlyonce_record AS record WHERE record.id = decode(left(onlyonce_complete.handle, 64), 'hex');
    -- Two hundred thousand years are for ever, as in row.rs.
    expires := CASE WHEN keep > interval '73000000 days' THEN 'infinity'
                    ELSE greatest((stamp AT TIME ZONE 'UTC' + keep) AT TIME ZONE 'UTC', stamp) END;
    -- Of a UUID the digits that are random: 64 bits.
    digits := replace(gen_random_uuid()::text, '-', '');

    UPDATE {schema}.onlyonce_record AS record
    SET revision = ('x' || left(digits, 12) || right(digits, 4))::bit(64)::bigint,
        written_at = stamp, due_at = expires, expires_at = expires,
        state = 'completed', completed_by = 'attempt',
        lapses_at = NULL, unknown_since = NULL, reason = NULL, dead_letter = false,
        status = CASE WHEN onlyonce_complete.body IS NOT NULL THEN onlyonce_complete.status END,
        headers = CASE WHEN onlyonce_complete.body IS NOT NULL THEN lines END,
        body = onlyonce_complete.body, key_id = NULL
    WHERE record.id = decode(left(onlyonce_complete.handle, 64), 'hex');
    -- The request of accepted work goes with the write that ends it.
    DELETE FROM {schema}.onlyonce_request AS request
    WHERE request.record = decode(left(onlyonce_complete.handle, 64), 'hex');
END
$function$;

-- Stores a message and returns its key. A message whose key is there already is the same message: it is stored once.
-- What breaks a rule of the table is refused by the table.
CREATE OR REPLACE FUNCTION {schema}.onlyonce_send(
    destination text, payload bytea, key text DEFAULT NULL, group_key text DEFAULT NULL, delay interval DEFAULT NULL,
    content_type text DEFAULT 'application/json', handle text DEFAULT NULL
)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    chosen text := coalesce(onlyonce_send.key, gen_random_uuid()::text);
BEGIN
    IF onlyonce_send.handle !~ '^[0-9a-f]+[.][0-9a-f]+$'
        OR strpos(onlyonce_send.handle, '.') <> 65 OR length(onlyonce_send.handle) <> 97 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'onlyonce: the handle is malformed',
            HINT = 'Pass the header Onlyonce-Token of the request as it came, or NULL.';
    END IF;
    INSERT INTO {schema}.onlyonce_outbox (key, destination, payload, content_type, group_key, due_at, record)
    VALUES (
        chosen, onlyonce_send.destination, onlyonce_send.payload,
        coalesce(onlyonce_send.content_type, 'application/json'), onlyonce_send.group_key,
        (clock_timestamp() AT TIME ZONE 'UTC' + coalesce(onlyonce_send.delay, interval '0')) AT TIME ZONE 'UTC',
        decode(left(onlyonce_send.handle, 64), 'hex')
    )
    ON CONFLICT (key) DO NOTHING;
    RETURN chosen;
END
$function$;

-- The same for the Rust library of a node that encrypts: SQL has no keys. What is passed is encrypted for this record.
CREATE OR REPLACE FUNCTION {schema}.onlyonce_complete_sealed(
    handle text, status integer, headers bytea, body bytea, retention interval, key_id bytea
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    -- In clear it would pass by what is checked of headers.
    IF onlyonce_complete_sealed.headers IS NULL OR onlyonce_complete_sealed.body IS NULL
        OR octet_length(onlyonce_complete_sealed.key_id) IS DISTINCT FROM 8 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'onlyonce: the answer is not encrypted',
            HINT = 'Call onlyonce_complete.';
    END IF;
    IF octet_length(onlyonce_complete_sealed.body) > 8388656 OR octet_length(onlyonce_complete_sealed.headers) > 65584 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = 'onlyonce: the answer is too large; at most 8388608 bytes of body and 65536 of headers are stored';
    END IF;
    PERFORM {schema}.onlyonce_complete(
        onlyonce_complete_sealed.handle, onlyonce_complete_sealed.status, '{}', NULL, onlyonce_complete_sealed.retention
    );
    UPDATE {schema}.onlyonce_record AS record
    SET status = onlyonce_complete_sealed.status, headers = onlyonce_complete_sealed.headers,
        body = onlyonce_complete_sealed.body, key_id = onlyonce_complete_sealed.key_id
    WHERE record.id = decode(left(onlyonce_complete_sealed.handle, 64), 'hex');
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.onlyonce_send_sealed(
    destination text, payload bytea, key text, group_key text, delay interval, content_type text, handle text, key_id bytea
)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
    INSERT INTO {schema}.onlyonce_outbox (key, destination, payload, content_type, group_key, due_at, record, key_id)
    VALUES (
        onlyonce_send_sealed.key, onlyonce_send_sealed.destination, onlyonce_send_sealed.payload,
        onlyonce_send_sealed.content_type, onlyonce_send_sealed.group_key,
        (clock_timestamp() AT TIME ZONE 'UTC' + onlyonce_send_sealed.delay) AT TIME ZONE 'UTC',
        decode(left(onlyonce_send_sealed.handle, 64), 'hex'), onlyonce_send_sealed.key_id
    )
    ON CONFLICT (key) DO NOTHING;
$function$;

-- PostgreSQL lets everybody call a new function. Who may is the operator's to say: onlyonce migrate --grants.
REVOKE ALL ON FUNCTION {schema}.onlyonce_hold, {schema}.onlyonce_complete, {schema}.onlyonce_send,
    {schema}.onlyonce_complete_sealed, {schema}.onlyonce_send_sealed FROM PUBLIC;
