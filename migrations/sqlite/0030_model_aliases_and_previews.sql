-- Whether the caller of a task of the API would see previews of its pictures.
ALTER TABLE queue ADD COLUMN wants_previews INTEGER NOT NULL DEFAULT 0;

-- The engine that the model of a waiting task stands for; empty if any engine may make its images. It never changes. A claim
-- looks for tasks of no engine and for those of its own, each a range of an index, so that tasks which wait for another
-- engine delay nobody. Few tasks name an engine.
ALTER TABLE queue ADD COLUMN engine TEXT NOT NULL DEFAULT '';
DROP INDEX queue_waiting;
CREATE INDEX queue_waiting ON queue (engine, account_id, task_id, ready_at, reference_count) WHERE lease_until IS NULL;
CREATE INDEX queue_named ON queue (account_id, engine, reference_count) WHERE lease_until IS NULL AND engine > '';
