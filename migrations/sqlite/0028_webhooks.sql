-- Receivers that are told of the events of an account. The secret signs, so it is kept as it is; after a rotation the
-- old one signs too, until its end. `events` holds names with a space between two.
CREATE TABLE endpoints (
    id               TEXT PRIMARY KEY,
    account_id       TEXT NOT NULL REFERENCES accounts (id),
    url              TEXT NOT NULL,
    events           TEXT NOT NULL,
    added_by         TEXT NOT NULL CHECK (added_by IN ('operator', 'owner')),
    secret           TEXT NOT NULL,
    old_secret       TEXT,
    old_secret_until INTEGER,
    failing_since    INTEGER,
    resume_at        INTEGER,
    disabled_at      INTEGER,
    disabled_for     TEXT CHECK (disabled_for IN ('request', 'gone', 'failing')),
    CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_for IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX endpoints_of_account ON endpoints (account_id);

-- Events on their way to an endpoint each, written in the commit of what they tell of. The end of a task has the id of the
-- task, and its data are those of the task. An attempt that has begun moves the next one to a time at which it is over.
CREATE TABLE deliveries (
    id              TEXT PRIMARY KEY,
    endpoint_id     TEXT NOT NULL REFERENCES endpoints (id) ON DELETE CASCADE,
    event_id        TEXT NOT NULL,
    type            TEXT NOT NULL,
    data            TEXT,
    happened_at     INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at INTEGER,
    delivered_at    INTEGER,
    status          INTEGER,
    trouble         TEXT,
    CHECK (delivered_at IS NULL OR next_attempt_at IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_waiting ON deliveries (endpoint_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX deliveries_of_endpoint ON deliveries (endpoint_id, id);
