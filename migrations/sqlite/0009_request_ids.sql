-- The id of the HTTP request that created the task, so that the id a caller quotes leads to the log of its render.
ALTER TABLE tasks ADD COLUMN request_id TEXT;
