-- Each change that somebody made to accounts, credits, keys, people, the queue or a task. A row names people and keys as they
-- were called then, because they may be gone when it is read.
CREATE TABLE audit_log (
    id         TEXT PRIMARY KEY,
    actor      TEXT NOT NULL,
    person_id  TEXT,
    via        TEXT NOT NULL CHECK (via IN ('command', 'studio')),
    source     TEXT,
    action     TEXT NOT NULL,
    account_id TEXT,
    subject    TEXT,
    detail     TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX audit_log_of_account ON audit_log (account_id, id);
