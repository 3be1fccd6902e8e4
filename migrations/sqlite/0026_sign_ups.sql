-- Attempts to sign up from one source on one day, in UTC. Deleted when the day is over.
CREATE TABLE sign_ups (
    source TEXT NOT NULL,
    day    TEXT NOT NULL,
    count  INTEGER NOT NULL CHECK (count > 0),
    PRIMARY KEY (source, day)
) STRICT, WITHOUT ROWID;
