-- The server itself makes changes, too: the content policy suspends keys and people. SQLite changes no constraint in place.
CREATE TABLE audit_log_anew (
    id         TEXT PRIMARY KEY,
    actor      TEXT NOT NULL,
    person_id  TEXT,
    via        TEXT NOT NULL CHECK (via IN ('command', 'studio', 'server')),
    source     TEXT,
    action     TEXT NOT NULL,
    account_id TEXT,
    subject    TEXT,
    detail     TEXT
) STRICT, WITHOUT ROWID;

INSERT INTO audit_log_anew SELECT id, actor, person_id, via, source, action, account_id, subject, detail FROM audit_log;
DROP TABLE audit_log;
ALTER TABLE audit_log_anew RENAME TO audit_log;
CREATE INDEX audit_log_of_account ON audit_log (account_id, id);
