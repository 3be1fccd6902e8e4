-- The time of the last claim, which tells waiting from rendering. It is not known of earlier tasks.
LOCK TABLE queue, tasks IN ACCESS EXCLUSIVE MODE;
ALTER TABLE queue ADD COLUMN claimed_at bigint;
ALTER TABLE tasks ADD COLUMN claimed_at bigint;

-- Mean time for each image of an attempt.
ALTER TABLE workers ADD COLUMN image_ms bigint CHECK (image_ms > 0);
