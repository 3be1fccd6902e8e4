-- The identities of people at OpenID Connect providers. A provider knows a subject for good, whatever its name or e-mail
-- address becomes.
CREATE TABLE person_identities (
    issuer    text COLLATE "C" NOT NULL,
    subject   text COLLATE "C" NOT NULL,
    person_id text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (issuer, subject),
    UNIQUE (person_id, issuer)
);
