LOCK TABLE queue IN ACCESS EXCLUSIVE MODE;
-- Whether the caller of a task of the API would see previews of its pictures.
ALTER TABLE queue ADD COLUMN wants_previews boolean NOT NULL DEFAULT false;

-- The engine that the model of a task stands for; empty if any engine may make its images. It never changes, so that it may
-- be in an index. A claim looks for tasks of no engine and for those of its own, each a range of the index, so that tasks
-- which wait for another engine delay nobody. Few tasks name an engine.
ALTER TABLE queue ADD COLUMN engine text COLLATE "C" NOT NULL DEFAULT '';
DROP INDEX queue_of_account;
CREATE INDEX queue_of_account ON queue (account_id, engine, task_id COLLATE "POSIX", reference_count);
CREATE INDEX queue_named ON queue (engine) WHERE engine > '';

-- Counts unfinished tasks from the id `first` on, up to `most`. Two ranges of the index, each from `first` on where it can.
CREATE OR REPLACE FUNCTION tintype_unfinished(account text, first text, most bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        (SELECT 1 FROM queue
        WHERE account_id = account COLLATE "C" AND engine = '' AND task_id COLLATE "POSIX" >= first LIMIT most)
        UNION ALL
        (SELECT 1 FROM queue
        WHERE account_id = account COLLATE "C" AND engine > '' AND task_id COLLATE "POSIX" >= first LIMIT most)
        LIMIT most) AS counted);
END $$;
