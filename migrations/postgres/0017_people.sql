-- An administrator's account sees and manages all others. The first account is the operator's own.
ALTER TABLE accounts ADD COLUMN admin boolean NOT NULL DEFAULT false;
UPDATE accounts SET admin = true WHERE id = (SELECT min(id) FROM accounts);

-- The people who may sign in to the studio. The password is an Argon2id hash in PHC format.
CREATE TABLE people (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    name       text COLLATE "C" NOT NULL UNIQUE,
    role       text NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    password   text
);

CREATE INDEX people_of_account ON people (account_id);

-- Links that sign a person in once: the sign-in deletes its link.
CREATE TABLE sign_in_links (
    hash       bytea PRIMARY KEY,
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    expires_at bigint NOT NULL
);

CREATE INDEX links_of_person ON sign_in_links (person_id);

CREATE TABLE sessions (
    hash       bytea PRIMARY KEY,
    id         text COLLATE "C" NOT NULL UNIQUE,
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    seen_at    bigint NOT NULL,
    expires_at bigint NOT NULL,
    agent      text NOT NULL
);

CREATE INDEX sessions_of_person ON sessions (person_id);
