-- Which key a waiting task came with; web tasks come with none. Only needed until the task has ended, so it
-- is in the narrow table that the task then leaves.
ALTER TABLE queue ADD COLUMN key_id text COLLATE "C";

ALTER TABLE api_keys ADD COLUMN suspended_at bigint;
ALTER TABLE api_keys ADD COLUMN suspended_for text CHECK ((suspended_for IS NULL) = (suspended_at IS NULL));

-- A task that the content policy refused, held against its key. Forgotten when the key is enabled, and when
-- it is too old to count.
CREATE TABLE strikes (
    task_id    text COLLATE "C" PRIMARY KEY,
    key_id     text COLLATE "C" NOT NULL REFERENCES api_keys (id),
    created_at bigint NOT NULL
);

CREATE INDEX strikes_of_key ON strikes (key_id, created_at);
