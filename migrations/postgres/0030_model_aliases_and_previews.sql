-- Whether the caller of a task of the API would see previews of its pictures.
LOCK TABLE queue IN ACCESS EXCLUSIVE MODE;
ALTER TABLE queue ADD COLUMN wants_previews boolean NOT NULL DEFAULT false;
