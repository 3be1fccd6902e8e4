-- The balance of an account is that of its newest ledger entry, and its unfinished tasks are counted in the queue. A row
-- of `accounts` never changes: transactions lock it while they charge or refund. So no account has dead tuples, however
-- long a reader keeps an old snapshot. Processes of the release before cannot work with this schema.
LOCK TABLE accounts, api_keys, ledger, queue IN ACCESS EXCLUSIVE MODE;

DO $$
DECLARE
    damaged text;
BEGIN
    SELECT a.id INTO damaged FROM accounts a
    WHERE a.balance <> coalesce((SELECT l.balance FROM ledger l WHERE l.account_id = a.id ORDER BY l.id DESC LIMIT 1), 0);
    IF FOUND THEN
        RAISE EXCEPTION 'the balance of the account % is not that of its ledger: run `tintype credits audit` of the release before', damaged;
    END IF;
END $$;

ALTER TABLE api_keys DROP CONSTRAINT api_keys_account_id_fkey;
DROP TRIGGER accounts_named ON accounts;
DROP FUNCTION tintype_name_account();
DROP TABLE account_names;
DROP INDEX accounts_newest;
ALTER TABLE accounts DROP COLUMN balance, DROP COLUMN unfinished, DROP COLUMN turn, ADD PRIMARY KEY (id), ADD UNIQUE (name);
ALTER TABLE accounts
    RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE api_keys ADD FOREIGN KEY (account_id) REFERENCES accounts (id);

-- The newest entry of an account is the end of a range of this key.
ALTER TABLE ledger DROP CONSTRAINT ledger_pkey, ADD PRIMARY KEY (account_id, id);
DROP INDEX ledger_of_account;

-- No index names a column that a claim or a renewal changes. So they leave no index entry as long as the page has room.
DROP INDEX queue_waiting, queue_leased;
ALTER TABLE queue SET (fillfactor = 50);
-- The collation sorts as that of the column does, but a look-up of a task by its id alone cannot use the index: while the
-- queue is empty, the planner would take it for as good as the primary key.
CREATE INDEX queue_of_account ON queue (account_id, task_id COLLATE "POSIX");

-- For a transaction that has locked the account: a volatile function sees all that is committed when it is called, while
-- the snapshot of the statement that calls it may be older than the lock.
CREATE FUNCTION tintype_balance(account text) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    newest bigint;
    found bigint;
BEGIN
    SELECT id, balance INTO newest, found FROM ledger WHERE account_id = account COLLATE "C" ORDER BY id DESC LIMIT 1;
    -- A new entry would not be the newest. Logical replication, for one, copies no sequence.
    IF newest > (SELECT last_value FROM ledger_id_seq) THEN
        RAISE EXCEPTION 'the sequence ledger_id_seq is behind the ledger: set it to the highest id of the ledger';
    END IF;
    RETURN coalesce(found, 0);
END $$;

-- Counts unfinished tasks from the id `first` on, up to `most`.
CREATE FUNCTION tintype_unfinished(account text, first text, most bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT 1 FROM queue
        WHERE account_id = account COLLATE "C" AND task_id COLLATE "POSIX" >= first LIMIT most) AS counted);
END $$;
