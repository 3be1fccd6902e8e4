-- Uploads of the studio keep the person who made them, and whether they were painted.
ALTER TABLE uploads ADD COLUMN person_id TEXT;
ALTER TABLE uploads ADD COLUMN is_mask INTEGER NOT NULL DEFAULT 0;
