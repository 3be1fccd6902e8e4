-- Stars are a person's. Those of an account become those of all its people.
CREATE TABLE stars_of_people (
    task_id   TEXT NOT NULL,
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (task_id, person_id)
) STRICT, WITHOUT ROWID;
INSERT INTO stars_of_people (task_id, person_id)
SELECT s.task_id, p.id FROM stars s JOIN people p ON p.account_id = s.account_id;
DROP TABLE stars;
ALTER TABLE stars_of_people RENAME TO stars;
CREATE INDEX stars_of_person ON stars (person_id, task_id);
