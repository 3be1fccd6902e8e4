-- The person who created a waiting task in the studio; tasks of the API have none.
ALTER TABLE queue ADD COLUMN person_id text COLLATE "C";

ALTER TABLE people ADD COLUMN suspended_at bigint;
ALTER TABLE people ADD COLUMN suspended_for text CHECK ((suspended_for IS NULL) = (suspended_at IS NULL));

-- A task that the content policy refused, held against the person who created it. Forgotten when the operator lifts the
-- strikes of the person, when it is too old to count, and with the person.
CREATE TABLE person_strikes (
    task_id    text COLLATE "C" PRIMARY KEY,
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    created_at bigint NOT NULL
);

CREATE INDEX strikes_of_person ON person_strikes (person_id, created_at);
