-- Studio tasks keep the person who created them, and a deletion can be made final before its time.
ALTER TABLE deletions ADD COLUMN is_final INTEGER NOT NULL DEFAULT 0;
CREATE INDEX deletions_final ON deletions (task_id) WHERE is_final AND NOT erased;
CREATE INDEX deletions_of_account ON deletions (account_id, task_id);
ALTER TABLE tasks ADD COLUMN person_id TEXT;
UPDATE tasks SET person_id = (SELECT q.person_id FROM queue q WHERE q.task_id = tasks.id)
WHERE id IN (SELECT task_id FROM queue WHERE person_id IS NOT NULL);
CREATE INDEX tasks_of_person ON tasks (account_id, person_id, id) WHERE removed_at IS NULL AND person_id IS NOT NULL;
