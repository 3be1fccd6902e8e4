-- The person who created a waiting task in the studio; tasks of the API have none.
ALTER TABLE queue ADD COLUMN person_id TEXT;

ALTER TABLE people ADD COLUMN suspended_at INTEGER;
ALTER TABLE people ADD COLUMN suspended_for TEXT CHECK ((suspended_for IS NULL) = (suspended_at IS NULL));

-- A task that the content policy refused, held against the person who created it. Forgotten when the operator lifts the
-- strikes of the person, when it is too old to count, and with the person.
CREATE TABLE person_strikes (
    task_id    TEXT PRIMARY KEY,
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX strikes_of_person ON person_strikes (person_id, created_at);
