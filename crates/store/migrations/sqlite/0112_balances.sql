-- The balance is only in the newest ledger entry, and unfinished tasks are counted in the queue.
ALTER TABLE accounts DROP COLUMN balance;
ALTER TABLE accounts DROP COLUMN unfinished;
CREATE INDEX queue_of_account ON queue (account_id, task_id);
