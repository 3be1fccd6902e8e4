-- Studio tasks keep the person who created them, and a deletion can be made final before its time.
ALTER TABLE deletions ADD COLUMN is_final boolean NOT NULL DEFAULT false;
CREATE INDEX deletions_final ON deletions (task_id) WHERE is_final AND NOT erased;
CREATE INDEX deletions_of_account ON deletions (account_id, task_id);
-- Last, because it locks all tasks until the end of the migration.
ALTER TABLE tasks ADD COLUMN person_id text COLLATE "C";
UPDATE tasks SET person_id = q.person_id FROM queue q WHERE q.task_id = tasks.id AND q.person_id IS NOT NULL;
CREATE INDEX tasks_of_person ON tasks (account_id, person_id, id) WHERE removed_at IS NULL AND person_id IS NOT NULL;
