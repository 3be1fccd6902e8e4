-- Tasks keep the settings that their images are rendered with.
ALTER TABLE tasks ADD COLUMN settings text;
