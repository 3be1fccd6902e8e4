-- Links by which several people join an account.
CREATE TABLE invitations (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    hash       bytea NOT NULL UNIQUE,
    role       text NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    places     bigint NOT NULL CHECK (places BETWEEN 1 AND 100),
    expires_at bigint NOT NULL
);
CREATE INDEX invitations_of_account ON invitations (account_id, id);
CREATE INDEX invitations_of_person ON invitations (person_id);
