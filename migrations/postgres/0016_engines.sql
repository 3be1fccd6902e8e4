-- The number of reference images of a task, so that a worker claims only what its engine can do. It never changes, so it
-- may be in the index: a claim passes over the tasks that it cannot take by the index alone.
LOCK TABLE queue, tasks IN ACCESS EXCLUSIVE MODE;
ALTER TABLE queue ADD COLUMN reference_count smallint NOT NULL DEFAULT 0;

DO $$
DECLARE
    waiting record;
BEGIN
    FOR waiting IN SELECT t.id, t.reference_images FROM queue q JOIN tasks t ON t.id = q.task_id WHERE t.image_to_image
    LOOP
        BEGIN
            UPDATE queue SET reference_count = json_array_length(waiting.reference_images::json)
            WHERE task_id = waiting.id;
        EXCEPTION WHEN data_exception OR invalid_text_representation THEN
            -- Nobody can read this row. It is claimed as before, and ends when its time is over.
            NULL;
        END;
    END LOOP;
END $$;

DROP INDEX queue_of_account;
CREATE INDEX queue_of_account ON queue (account_id, task_id COLLATE "POSIX", reference_count);

-- Reports of workers, each with its engine. The row of an engine that is down, or whose worker has ended, stays for a
-- day: tasks that only this engine can do wait for it.
DROP TABLE workers;
CREATE TABLE workers (
    id             text COLLATE "C" PRIMARY KEY,
    engine         text COLLATE "C" NOT NULL,
    max_references int NOT NULL CHECK (max_references >= 0),
    slots          int NOT NULL CHECK (slots > 0),
    mean_ms        bigint CHECK (mean_ms > 0),
    is_available   boolean NOT NULL,
    seen_at        bigint NOT NULL
) WITH (fillfactor = 50);
