-- How far attempts are, as their workers report it about once a second. A row counts while the queue has the lease of its
-- epoch; the sweep for expired leases deletes the others. Unlogged: a report writes no log and waits for no disk, and
-- what a crash takes with it is reported again.
CREATE UNLOGGED TABLE progress (
    task_id     text COLLATE "C" PRIMARY KEY,
    lease_epoch bigint NOT NULL,
    started_at  bigint NOT NULL,
    -- Either steps, or a part of the work from 0 to 1, or nothing yet.
    step        bigint,
    steps       bigint,
    fraction    real
) WITH (fillfactor = 50);
