-- Attempts to sign up from one source on one day, in UTC. Deleted when the day is over.
CREATE TABLE sign_ups (
    source text COLLATE "C" NOT NULL,
    day    text COLLATE "C" NOT NULL,
    count  bigint NOT NULL CHECK (count > 0),
    PRIMARY KEY (source, day)
);
