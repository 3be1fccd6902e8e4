-- The second factor of a person: the secret that an authenticator app shares with this server, kept as it is because codes
-- are computed with it, and the last step whose code was used, because a code works once.
ALTER TABLE people ADD COLUMN factor_secret BLOB;
ALTER TABLE people ADD COLUMN factor_step INTEGER CHECK ((factor_step IS NULL) = (factor_secret IS NULL));

-- The hashes of the codes that each stand in for the app once: using one deletes it.
CREATE TABLE recovery_codes (
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    hash      BLOB NOT NULL,
    PRIMARY KEY (person_id, hash)
) STRICT, WITHOUT ROWID;

-- Whether the session began at an OpenID Connect provider, which is responsible for second factors then.
ALTER TABLE sessions ADD COLUMN by_provider INTEGER NOT NULL DEFAULT 0;
