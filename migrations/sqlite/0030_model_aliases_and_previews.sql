-- Whether the caller of a task of the API would see previews of its pictures.
ALTER TABLE queue ADD COLUMN wants_previews INTEGER NOT NULL DEFAULT 0;
