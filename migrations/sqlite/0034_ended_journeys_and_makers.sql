-- The latest time at which all sessions of a person ended, by a new password or by request. A journey to an OpenID Connect
-- provider that began before it signs nobody in.
ALTER TABLE people ADD COLUMN sessions_ended_at INTEGER;

-- The person who made a key in the studio. Strikes of the key count for this person, too.
ALTER TABLE api_keys ADD COLUMN made_by TEXT;
