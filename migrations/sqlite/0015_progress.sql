-- How far attempts are, as their worker reports it about once a second. A row counts while the queue has the lease of its
-- epoch; the sweep for expired leases deletes the others.
CREATE TABLE progress (
    task_id     TEXT PRIMARY KEY,
    lease_epoch INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    -- Either steps, or a part of the work from 0 to 1, or nothing yet.
    step        INTEGER,
    steps       INTEGER,
    fraction    REAL
) STRICT, WITHOUT ROWID;
