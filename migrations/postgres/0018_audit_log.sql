-- Each change that somebody made to accounts, credits, keys, people, the queue or a task. A row names people and keys as they
-- were called then, because they may be gone when it is read.
CREATE TABLE audit_log (
    id         text COLLATE "C" PRIMARY KEY,
    actor      text NOT NULL,
    person_id  text COLLATE "C",
    via        text NOT NULL CHECK (via IN ('command', 'studio')),
    source     text,
    action     text NOT NULL,
    account_id text COLLATE "C",
    subject    text,
    detail     text
);

CREATE INDEX audit_log_of_account ON audit_log (account_id, id);
