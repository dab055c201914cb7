-- What an application calls in its own transaction: docs/guide.md, "One transaction".
--
-- 1. The procedures run with the rights of the user that migrated, so a user that may call them needs no right on any table.
-- 2. An error of a statement does not abort a transaction here, so every procedure rolls back before an error leaves it: who
--    ignores the error and commits has nothing to commit.
-- 3. They rely on no setting of the caller's session: sql_mode and character sets are those of the migration, and moments are
--    in UTC.
-- 4. A local name goes before the column of the same name: columns that are read are named with their table.
-- 5. A handle appears in no message. Messages are at most 128 characters long, as MySQL wants them.
-- 6. The text of each procedure is one statement, which ends at a semicolon before an empty line.
SET NAMES utf8mb4;

-- Locks the record of a handle and refuses whoever may not complete it: machine::finish with a completed outcome.
-- Relies on the primary key. A locking read judges the row as it stands when the lock is had, also at REPEATABLE READ.
CREATE PROCEDURE onlyonce_hold(handle LONGBLOB)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE found_state VARBINARY(16);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF COALESCE(OCTET_LENGTH(handle) <> 97 OR SUBSTR(handle, 65, 1) <> '.'
                OR LOWER(CONVERT(HEX(UNHEX(LEFT(handle, 64))) USING ascii)) <> LEFT(handle, 64)
                OR LOWER(CONVERT(HEX(UNHEX(RIGHT(handle, 32))) USING ascii)) <> RIGHT(handle, 32), TRUE) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'onlyonce: the handle is malformed; pass the header Onlyonce-Token of the request as it came';
    END IF;
    SELECT record.state INTO found_state FROM onlyonce_record AS record
    WHERE record.id = UNHEX(LEFT(handle, 64)) AND record.token = UNHEX(RIGHT(handle, 32))
    FOR UPDATE;
    IF found_state = 'completed' THEN
        SIGNAL SQLSTATE 'OO002' SET MYSQL_ERRNO = 31002, MESSAGE_TEXT = 'onlyonce: this attempt has completed already';
    END IF;
    -- One text for all, so that nobody learns which records exist. The token of a pending record is not an attempt's.
    IF found_state IS NULL OR found_state NOT IN ('running', 'unknown', 'retryable') THEN
        SIGNAL SQLSTATE 'OO001' SET MYSQL_ERRNO = 31001, MESSAGE_TEXT =
            'onlyonce: this attempt may no longer complete: a later attempt has begun, or the record is gone';
    END IF;
END;

-- Writes a completed record. Only procedures of this file call it: nobody is granted it.
CREATE PROCEDURE onlyonce_write_completed(
    handle LONGBLOB, status BIGINT, header_lines LONGBLOB, body LONGBLOB, retention_seconds DECIMAL(65, 6), key_id LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE is_alone BOOLEAN DEFAULT FALSE;
    DECLARE fresh_revision, stamp, expires BIGINT;
    DECLARE keep_us DECIMAL(65, 0);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF retention_seconds < 0 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'onlyonce: retention_seconds is negative';
    END IF;
    -- Outside a transaction no savepoint stays, and each statement would commit by itself.
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_alone = TRUE;
        SAVEPOINT onlyonce_complete;
        RELEASE SAVEPOINT onlyonce_complete;
    END;
    IF is_alone THEN
        START TRANSACTION;
    END IF;
    CALL onlyonce_hold(handle);
    -- The row is ours until the transaction ends. Read with its lock, since a snapshot may be older.
    SELECT GREATEST(record.written_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
           COALESCE(LEAST(retention_seconds, 10000000000000) * 1000000, record.retention_us)
    INTO stamp, keep_us
    FROM onlyonce_record AS record WHERE record.id = UNHEX(LEFT(handle, 64)) FOR UPDATE;
    -- A quarter of the range is for ever, as in row.rs.
    SET expires = IF(keep_us > 2305843009213693951, 9223372036854775807, LEAST(stamp + keep_us, 9223372036854775807));
    SET fresh_revision = CONV(LEFT(SHA2(CONCAT(UUID(), RAND(), RAND()), 256), 16), 16, -10);
    UPDATE onlyonce_record AS record
    SET record.revision = fresh_revision, record.written_at = stamp, record.due_at = expires, record.expires_at = expires,
        record.state = 'completed', record.completed_by = 'attempt',
        record.lapses_at = NULL, record.unknown_since = NULL, record.reason = NULL, record.dead_letter = FALSE,
        record.status = IF(body IS NULL, NULL, status), record.headers = IF(body IS NULL, NULL, header_lines),
        record.body = body, record.key_id = key_id
    WHERE record.id = UNHEX(LEFT(handle, 64));
    -- The request of accepted work goes with the write that ends it.
    DELETE FROM onlyonce_request WHERE onlyonce_request.record = UNHEX(LEFT(handle, 64));
    IF is_alone THEN
        COMMIT;
    END IF;
END;

-- Completes the attempt of a handle. Sets the columns that sql.rs gives to a completed record, and nothing else.
-- A body of NULL: completed, and no answer is stored. Of headers and retention_seconds, NULL is the default.
CREATE PROCEDURE onlyonce_complete(
    handle LONGBLOB, status BIGINT, headers LONGTEXT CHARACTER SET utf8mb4, body LONGBLOB, retention_seconds DECIMAL(65, 6)
)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE header_lines LONGBLOB DEFAULT '';
    DECLARE name_list, told, listed LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE name, header_value LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE name_count, name_place, value_count, value_place INT DEFAULT 0;
    DECLARE values_left INT DEFAULT 1000;
    DECLARE fault VARCHAR(128) CHARACTER SET utf8mb4;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF COALESCE(status NOT BETWEEN 200 AND 599, TRUE) THEN
        SET fault = CONCAT('onlyonce: status ', COALESCE(status, 'null'), ' is not between 200 and 599');
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = fault;
    END IF;
    IF OCTET_LENGTH(body) > 8388608 THEN
        SET fault = CONCAT('onlyonce: a body of ', OCTET_LENGTH(body), ' bytes is too large; at most 8388608 are stored');
        SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT = fault;
    END IF;
    SET headers = COALESCE(headers, '{}');
    -- Each look into a JSON text reads it from its beginning.
    IF OCTET_LENGTH(headers) > 262144 THEN
        SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT = 'onlyonce: headers are too large; at most 65536 bytes are stored';
    END IF;
    IF NOT JSON_VALID(headers) OR COALESCE(JSON_TYPE(headers) <> 'OBJECT', TRUE) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'onlyonce: headers are not a JSON object, such as {"content-type": "application/json"}';
    END IF;
    SET name_list = JSON_KEYS(headers);
    SET name_count = JSON_LENGTH(name_list);
    IF name_count > values_left THEN
        SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT = 'onlyonce: there are too many headers; at most 1000 are stored';
    END IF;
    WHILE name_place < name_count DO
        -- As it is written, between its quotes: a name with an escape in it is no name of a header.
        SET name = JSON_EXTRACT(name_list, CONCAT('$[', name_place, ']')), name_place = name_place + 1;
        SET name = SUBSTR(name, 2, CHAR_LENGTH(name) - 2);
        IF name REGEXP _utf8mb4'[^A-Za-z0-9!#$%&''*+.^_`|~-]' OR CHAR_LENGTH(name) NOT BETWEEN 1 AND 256 THEN
            SET fault = CONCAT('onlyonce: "', LEFT(name, 80), '" is no name of a header');
            SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = fault;
        END IF;
        SET told = JSON_EXTRACT(headers, CONCAT('$."', name, '"')), name = LOWER(name);
        -- True only of one connection, of the first answer, of the caller, or ours.
        IF name NOT IN (
            'connection', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'proxy-connection',
            'content-length', 'date', 'age', 'set-cookie',
            'authorization', 'www-authenticate', 'authentication-info', 'proxy-authentication-info'
        ) AND LEFT(name, 9) <> 'onlyonce-' AND LEFT(name, 9) <> 'idempoten' THEN
            SET listed = IF(JSON_TYPE(told) = 'ARRAY', told, CONCAT('[', COALESCE(told, 'null'), ']')), value_place = 0;
            SET value_count = JSON_LENGTH(listed);
            SET values_left = values_left - value_count;
            IF values_left < 0 THEN
                SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT = 'onlyonce: there are too many headers; at most 1000 are stored';
            END IF;
            WHILE value_place < value_count DO
                SET header_value = JSON_EXTRACT(listed, CONCAT('$[', value_place, ']')), value_place = value_place + 1;
                IF COALESCE(JSON_TYPE(header_value) <> 'STRING', TRUE) THEN
                    SET fault = CONCAT('onlyonce: header "', LEFT(name, 60), '" is neither a string nor a list of strings');
                    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = fault;
                END IF;
                SET header_value = JSON_UNQUOTE(header_value);
                IF header_value REGEXP _utf8mb4'[\\x00-\\x08\\x0A-\\x1F\\x7F]' THEN
                    SET fault = CONCAT('onlyonce: header "', LEFT(name, 60), '" has a control character in its value');
                    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = fault;
                END IF;
                SET header_lines = CONCAT(header_lines, name, ': ', header_value, '\n');
                IF OCTET_LENGTH(header_lines) > 65536 THEN
                    SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT =
                        'onlyonce: headers are too large; at most 65536 bytes are stored';
                END IF;
            END WHILE;
        END IF;
    END WHILE;
    CALL onlyonce_write_completed(handle, status, header_lines, body, retention_seconds, NULL);
END;

-- Stores a message and returns its key, as a row. A message whose key is there already is the same message: it is stored once.
-- NULL is the default of every argument behind the payload. What breaks a rule of the table is 23514, as on PostgreSQL.
CREATE PROCEDURE onlyonce_send(
    destination LONGTEXT CHARACTER SET utf8mb4, payload LONGBLOB, `key` LONGTEXT CHARACTER SET utf8mb4,
    group_key LONGTEXT CHARACTER SET utf8mb4, delay_seconds DECIMAL(65, 6), content_type LONGTEXT CHARACTER SET utf8mb4,
    handle LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF `key` IS NULL THEN
        SET `key` = UUID();
    END IF;
    CALL onlyonce_send_sealed(destination, payload, `key`, group_key, delay_seconds, content_type, handle, NULL);
    SELECT `key` AS `key`;
END;

-- The same for the Rust library of a node that encrypts: SQL has no keys. What is passed is encrypted for this record.
CREATE PROCEDURE onlyonce_complete_sealed(
    handle LONGBLOB, status BIGINT, header_lines LONGBLOB, body LONGBLOB, retention_seconds DECIMAL(65, 6), key_id LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    -- In clear it would pass by what is checked of headers.
    IF header_lines IS NULL OR body IS NULL OR COALESCE(OCTET_LENGTH(key_id) <> 8, TRUE) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'onlyonce: the answer is not encrypted; call onlyonce_complete';
    END IF;
    IF COALESCE(status NOT BETWEEN 200 AND 599, TRUE) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'onlyonce: the status is not between 200 and 599';
    END IF;
    IF OCTET_LENGTH(body) > 8388656 OR OCTET_LENGTH(header_lines) > 65584 THEN
        SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT =
            'onlyonce: the answer is too large; at most 8388608 bytes of body and 65536 of headers are stored';
    END IF;
    CALL onlyonce_write_completed(handle, status, header_lines, body, retention_seconds, key_id);
END;

CREATE PROCEDURE onlyonce_send_sealed(
    destination LONGTEXT CHARACTER SET utf8mb4, payload LONGBLOB, `key` LONGTEXT CHARACTER SET utf8mb4,
    group_key LONGTEXT CHARACTER SET utf8mb4, delay_seconds DECIMAL(65, 6), content_type LONGTEXT CHARACTER SET utf8mb4,
    handle LONGBLOB, key_id LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE due BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    -- NULL, out of range, wrong characters, too long; a CHECK of MySQL, and of MariaDB.
    DECLARE EXIT HANDLER FOR 1048, 1264, 1366, 1406, 1690, 3819, 4025
    BEGIN
        DECLARE fault VARCHAR(128) CHARACTER SET utf8mb4;
        DECLARE said TEXT CHARACTER SET utf8mb4;
        GET DIAGNOSTICS CONDITION 1 said = MESSAGE_TEXT;
        ROLLBACK;
        SET fault = LEFT(CONCAT('onlyonce: the message breaks a rule of onlyonce_outbox: ', said), 128);
        SIGNAL SQLSTATE '23514' SET MESSAGE_TEXT = fault;
    END;
    IF OCTET_LENGTH(handle) <> 97 OR SUBSTR(handle, 65, 1) <> '.'
        OR COALESCE(LOWER(CONVERT(HEX(UNHEX(LEFT(handle, 64))) USING ascii)) <> LEFT(handle, 64), handle IS NOT NULL)
        OR COALESCE(LOWER(CONVERT(HEX(UNHEX(RIGHT(handle, 32))) USING ascii)) <> RIGHT(handle, 32), handle IS NOT NULL) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'onlyonce: the handle is malformed; pass the header Onlyonce-Token of the request as it came, or NULL';
    END IF;
    SET due = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + COALESCE(delay_seconds, 0) * 1000000;
    INSERT INTO onlyonce_outbox (`key`, destination, payload, content_type, group_key, due_at, record, key_id)
    VALUES (
        `key`, destination, payload, COALESCE(content_type, 'application/json'), group_key, due,
        UNHEX(LEFT(handle, 64)), key_id
    )
    ON DUPLICATE KEY UPDATE number = number;
END;
