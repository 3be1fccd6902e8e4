-- A removed task is a row that callers no longer see: its ledger entries go on pointing at it.
ALTER TABLE tasks ADD COLUMN removed_at bigint CHECK (removed_at IS NULL OR status <> 'processing');

-- With removed_at in it, always null, a page of ids is read from the index alone.
DROP INDEX tasks_of_account;
CREATE INDEX tasks_of_account ON tasks (account_id, surface, id, removed_at) WHERE removed_at IS NULL;
