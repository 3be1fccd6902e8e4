-- Stars are a person's. Those of an account become those of all its people.
ALTER TABLE stars DROP CONSTRAINT stars_pkey;
DROP INDEX stars_of_account;
ALTER TABLE stars ADD COLUMN person_id text COLLATE "C" REFERENCES people (id) ON DELETE CASCADE;
INSERT INTO stars (task_id, account_id, person_id)
SELECT s.task_id, s.account_id, p.id FROM stars s JOIN people p ON p.account_id = s.account_id;
DELETE FROM stars WHERE person_id IS NULL;
ALTER TABLE stars DROP COLUMN account_id;
ALTER TABLE stars ALTER COLUMN person_id SET NOT NULL;
ALTER TABLE stars ADD PRIMARY KEY (task_id, person_id);
CREATE INDEX stars_of_person ON stars (person_id, task_id);
