-- An administrator's account sees and manages all others. The first account is the operator's own.
ALTER TABLE accounts ADD COLUMN admin INTEGER NOT NULL DEFAULT 0;
UPDATE accounts SET admin = 1 WHERE id = (SELECT min(id) FROM accounts);

-- The people who may sign in to the studio. The password is an Argon2id hash in PHC format.
CREATE TABLE people (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL UNIQUE,
    role       TEXT NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    password   TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX people_of_account ON people (account_id);

-- Links that sign a person in once: the sign-in deletes its link.
CREATE TABLE sign_in_links (
    hash       BLOB PRIMARY KEY,
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX links_of_person ON sign_in_links (person_id);

CREATE TABLE sessions (
    hash       BLOB PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    seen_at    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    agent      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_of_person ON sessions (person_id);
