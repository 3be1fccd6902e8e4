-- Links by which several people join an account.
CREATE TABLE invitations (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    hash       BLOB NOT NULL UNIQUE,
    role       TEXT NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    places     INTEGER NOT NULL CHECK (places BETWEEN 1 AND 100),
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX invitations_of_account ON invitations (account_id, id);
CREATE INDEX invitations_of_person ON invitations (person_id);
