-- The identities of people at OpenID Connect providers. A provider knows a subject for good, whatever its name or e-mail
-- address becomes.
CREATE TABLE person_identities (
    issuer    TEXT NOT NULL,
    subject   TEXT NOT NULL,
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (issuer, subject),
    UNIQUE (person_id, issuer)
) STRICT, WITHOUT ROWID;
