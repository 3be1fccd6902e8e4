-- When the key last opened the API, to the minute or so: for the operator who looks for keys that nobody uses,
-- or that somebody else does.
ALTER TABLE api_keys ADD COLUMN last_used_at INTEGER;
