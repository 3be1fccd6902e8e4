-- Pictures that people bring as references. The row is there before the file, so that a sweep knows whose the file is; the
-- name of the file is set once it is stored. A removed upload keeps its row until its file is gone.
CREATE TABLE uploads (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    surface    text NOT NULL CHECK (surface IN ('api', 'web')),
    name       text,
    width      bigint,
    height     bigint,
    updated_at bigint NOT NULL,
    removed_at bigint
);

CREATE INDEX uploads_of_account ON uploads (account_id, surface, id) WHERE removed_at IS NULL;
CREATE INDEX removed_uploads ON uploads (removed_at) WHERE removed_at IS NOT NULL;
