-- Uploads of the studio keep the person who made them, and whether they were painted.
ALTER TABLE uploads
    ADD COLUMN person_id text COLLATE "C",
    ADD COLUMN is_mask boolean NOT NULL DEFAULT false;
