-- A removed task is a row that callers no longer see: its ledger entries go on pointing at it.
-- It comes after the long columns and can: SQLite tells that it is null by the row's header alone.
ALTER TABLE tasks ADD COLUMN removed_at INTEGER CHECK (removed_at IS NULL OR status <> 'processing');

-- With removed_at in it, always null, a page of ids is read from the index alone.
DROP INDEX tasks_of_account;
CREATE INDEX tasks_of_account ON tasks (account_id, surface, id, removed_at) WHERE removed_at IS NULL;
