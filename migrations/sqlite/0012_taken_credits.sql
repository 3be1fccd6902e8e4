-- The operator may take credits away, which is a negative grant. A check cannot be changed, so the table is made anew.
CREATE TABLE ledger_with_taken_credits (
    id         INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    kind       TEXT NOT NULL CHECK (kind IN ('grant', 'charge', 'refund')),
    amount     INTEGER NOT NULL CHECK ((kind = 'grant' OR (amount < 0) = (kind = 'charge')) AND amount <> 0),
    balance    INTEGER NOT NULL CHECK (balance >= 0),
    created_at INTEGER NOT NULL,
    task_id    TEXT REFERENCES tasks (id) CHECK ((task_id IS NULL) = (kind = 'grant')),
    note       TEXT
) STRICT;
INSERT INTO ledger_with_taken_credits (id, account_id, kind, amount, balance, created_at, task_id, note)
SELECT id, account_id, kind, amount, balance, created_at, task_id, note FROM ledger ORDER BY id;
DROP TABLE ledger;
ALTER TABLE ledger_with_taken_credits RENAME TO ledger;
CREATE INDEX ledger_of_account ON ledger (account_id);
CREATE UNIQUE INDEX ledger_once ON ledger (task_id, kind) WHERE task_id IS NOT NULL;
