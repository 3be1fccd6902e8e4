-- Ids are text that sorts by creation time; they hold it, so no table repeats it.
-- Times are milliseconds since the Unix epoch.

CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE accounts (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    balance    INTEGER NOT NULL CHECK (balance >= 0),
    unfinished INTEGER NOT NULL DEFAULT 0 CHECK (unfinished >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE api_keys (
    id          TEXT PRIMARY KEY,
    account_id  TEXT NOT NULL REFERENCES accounts (id),
    hash        BLOB NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    hint        TEXT NOT NULL,
    submit_rate INTEGER,
    read_rate   INTEGER,
    expires_at  INTEGER,
    disabled    INTEGER NOT NULL DEFAULT 0,
    revoked_at  INTEGER,
    leaked_at   INTEGER
) STRICT, WITHOUT ROWID;

-- The columns that grow long come last, so that reading the others never touches them.
CREATE TABLE tasks (
    id               TEXT PRIMARY KEY,
    account_id       TEXT NOT NULL REFERENCES accounts (id),
    surface          TEXT NOT NULL CHECK (surface IN ('api', 'web')),
    image_to_image   INTEGER NOT NULL,
    status           TEXT NOT NULL DEFAULT 'processing' CHECK (status IN ('processing', 'completed', 'failed')),
    updated_at       INTEGER NOT NULL,
    images           TEXT CHECK ((images IS NOT NULL) = (status = 'completed') AND images <> '[]'),
    error            TEXT CHECK ((error IS NOT NULL) = (status = 'failed')),
    n                INTEGER NOT NULL CHECK (n BETWEEN 1 AND 4),
    aspect_ratio     TEXT NOT NULL,
    reference_images TEXT NOT NULL,
    prompt           TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX tasks_of_account ON tasks (account_id, surface, id);

-- Exactly the tasks that are processing. A row waits while lease_until is null.
CREATE TABLE queue (
    task_id     TEXT PRIMARY KEY REFERENCES tasks (id),
    account_id  TEXT NOT NULL,
    ready_at    INTEGER NOT NULL DEFAULT 0,
    lease_epoch INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER,
    lost_leases INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX queue_waiting ON queue (account_id, task_id, ready_at) WHERE lease_until IS NULL;
CREATE INDEX queue_leased ON queue (lease_until) WHERE lease_until IS NOT NULL;

CREATE TABLE ledger (
    id         INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    kind       TEXT NOT NULL CHECK (kind IN ('grant', 'charge', 'refund')),
    amount     INTEGER NOT NULL CHECK ((amount < 0) = (kind = 'charge') AND amount <> 0),
    balance    INTEGER NOT NULL CHECK (balance >= 0),
    created_at INTEGER NOT NULL,
    task_id    TEXT REFERENCES tasks (id) CHECK ((task_id IS NULL) = (kind = 'grant')),
    note       TEXT
) STRICT;

CREATE INDEX ledger_of_account ON ledger (account_id);
-- A task is charged once and refunded at most once, whatever the code above does.
CREATE UNIQUE INDEX ledger_once ON ledger (task_id, kind) WHERE task_id IS NOT NULL;
