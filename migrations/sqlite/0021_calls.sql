-- Calls of OpenAI's dialect, by which a repeated call finds the task of the attempt before. The digests are SHA-256 of the
-- choices of the call and of its idempotency key.
CREATE TABLE calls (
    task_id      TEXT PRIMARY KEY,
    key_id       TEXT NOT NULL,
    digest       BLOB NOT NULL,
    idempotency  BLOB,
    -- The latest attempt that took the task, counted from 0.
    attempt      INTEGER NOT NULL,
    -- The call that waits for the task; null once its caller has hung up.
    holder       INTEGER,
    delivered_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX calls_by_idempotency ON calls (key_id, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX undelivered_calls ON calls (key_id, digest) WHERE idempotency IS NULL AND delivered_at IS NULL;
