-- A key may have a budget: credits to spend in a day, a week or a month. Keys that were rotated share one: `first_id` is the
-- key at the beginning of their line. Earlier rotations are not known.
ALTER TABLE api_keys ADD COLUMN first_id TEXT;
ALTER TABLE api_keys ADD COLUMN budget INTEGER CHECK (budget > 0);
ALTER TABLE api_keys ADD COLUMN budget_period TEXT
    CHECK ((budget_period IS NULL) = (budget IS NULL) AND budget_period IN ('day', 'week', 'month'));
UPDATE api_keys SET first_id = id;
CREATE INDEX keys_of_line ON api_keys (first_id);

-- An entry of a task names its key, and one of the kind `expiry` the grant that lapsed. A check cannot be changed, so the
-- table is made anew.
CREATE TABLE ledger_with_keys (
    id         INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    kind       TEXT NOT NULL CHECK (kind IN ('grant', 'charge', 'refund', 'expiry')),
    amount     INTEGER NOT NULL
        CHECK ((kind = 'grant' OR (amount < 0) = (kind IN ('charge', 'expiry'))) AND amount <> 0),
    balance    INTEGER NOT NULL CHECK (balance >= 0),
    created_at INTEGER NOT NULL,
    task_id    TEXT REFERENCES tasks (id) CHECK ((task_id IS NULL) = (kind IN ('grant', 'expiry'))),
    note       TEXT,
    key_id     TEXT CHECK (key_id IS NULL OR task_id IS NOT NULL),
    grant_id   INTEGER CHECK ((grant_id IS NOT NULL) = (kind = 'expiry'))
) STRICT;
-- The key of earlier tasks is known while they are in the queue.
INSERT INTO ledger_with_keys (id, account_id, kind, amount, balance, created_at, task_id, note, key_id)
SELECT id, account_id, kind, amount, balance, created_at, task_id, note,
    (SELECT key_id FROM queue q WHERE q.task_id = ledger.task_id)
FROM ledger ORDER BY id;
DROP TABLE ledger;
ALTER TABLE ledger_with_keys RENAME TO ledger;
CREATE INDEX ledger_of_account ON ledger (account_id);
CREATE UNIQUE INDEX ledger_once ON ledger (task_id, kind) WHERE task_id IS NOT NULL;
-- The entries of a key in a period are a range of this index, which holds all that is read.
CREATE INDEX ledger_of_key ON ledger (key_id, task_id, amount) WHERE key_id IS NOT NULL;
-- A grant lapses once, whatever the code above does.
CREATE UNIQUE INDEX ledger_expiry_once ON ledger (grant_id) WHERE grant_id IS NOT NULL;

-- Credits that expire, by the entry that brought them: a grant, or a refund of credits whose grant had lapsed. They are
-- part of the balance. `remaining` is what can still be spent of them; `lapsed` is what was left when they expired.
CREATE TABLE expiring_grants (
    entry_id   INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    amount     INTEGER NOT NULL CHECK (amount > 0),
    expires_at INTEGER NOT NULL,
    remaining  INTEGER NOT NULL CHECK (remaining BETWEEN 0 AND amount),
    lapsed     INTEGER CHECK (lapsed IS NULL OR (lapsed BETWEEN 0 AND amount AND remaining = 0))
) STRICT;

CREATE INDEX live_grants ON expiring_grants (account_id, expires_at, entry_id) WHERE lapsed IS NULL;
CREATE INDEX grants_due ON expiring_grants (expires_at) WHERE lapsed IS NULL;

-- Credits of expiring grants that a task took, for its refund: pairs of grant and credits in JSON. Only needed until the task
-- has ended, so it is in the narrow table that the task then leaves.
ALTER TABLE queue ADD COLUMN taken TEXT;

-- The owner is told when a balance falls below this.
ALTER TABLE accounts ADD COLUMN low_balance INTEGER CHECK (low_balance > 0);
