-- The latest preview of attempts whose engine makes any, for the studio alone. A row counts while the queue has the lease of
-- its epoch; the sweep for expired leases deletes the others.
CREATE TABLE previews (
    task_id     TEXT PRIMARY KEY,
    lease_epoch INTEGER NOT NULL,
    -- Rises with each preview of a task.
    number      INTEGER NOT NULL,
    png         BLOB NOT NULL
) STRICT;
