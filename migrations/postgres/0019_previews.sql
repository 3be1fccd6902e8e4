-- The latest preview of attempts whose engine makes any, for the studio alone. A row counts while the queue has the lease of
-- its epoch; the sweep for expired leases deletes the others. Unlogged, as the progress is.
CREATE UNLOGGED TABLE previews (
    task_id     text COLLATE "C" PRIMARY KEY,
    lease_epoch bigint NOT NULL,
    -- Rises with each preview of a task.
    number      bigint NOT NULL,
    png         bytea NOT NULL
);
-- A PNG does not get smaller.
ALTER TABLE previews ALTER COLUMN png SET STORAGE EXTERNAL;
