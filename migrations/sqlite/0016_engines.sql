-- The number of reference images of a waiting task, so that a worker claims only what its engine can do. It never changes.
ALTER TABLE queue ADD COLUMN reference_count INTEGER NOT NULL DEFAULT 0;
UPDATE queue SET reference_count = (
    SELECT CASE WHEN json_valid(t.reference_images) THEN json_array_length(t.reference_images) ELSE 0 END
    FROM tasks t WHERE t.id = queue.task_id)
WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.id = queue.task_id AND t.image_to_image <> 0);

-- A claim passes over the tasks that it cannot take by the index alone.
DROP INDEX queue_waiting;
CREATE INDEX queue_waiting ON queue (account_id, task_id, ready_at, reference_count) WHERE lease_until IS NULL;
CREATE INDEX queue_with_references ON queue (reference_count) WHERE reference_count > 0;
