-- The server itself makes changes, too: the content policy suspends keys and people.
ALTER TABLE audit_log DROP CONSTRAINT audit_log_via_check;
ALTER TABLE audit_log ADD CONSTRAINT audit_log_via_check CHECK (via IN ('command', 'studio', 'server'));
