-- A board may be private to a person.
ALTER TABLE boards ADD COLUMN person_id text COLLATE "C" REFERENCES people (id) ON DELETE CASCADE;
ALTER TABLE boards DROP CONSTRAINT boards_account_id_name_key;
CREATE UNIQUE INDEX boards_by_name ON boards (account_id, coalesce(person_id, ''), name);
CREATE INDEX boards_of_person ON boards (person_id) WHERE person_id IS NOT NULL;
