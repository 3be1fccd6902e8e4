-- The search of the prompts of the studio's tasks. Each term begins with a tag of its account.
CREATE TABLE prompts (
    task_id text COLLATE "C" PRIMARY KEY,
    words   tsvector NOT NULL
);

-- Without a list of pending entries, so that no search has to read one.
CREATE INDEX prompts_by_word ON prompts USING gin (words) WITH (fastupdate = off);

-- Tasks whose prompts are yet to be indexed.
CREATE TABLE unindexed (
    task_id text COLLATE "C" PRIMARY KEY
);

INSERT INTO unindexed SELECT id FROM tasks WHERE surface = 'web' AND removed_at IS NULL;

CREATE TABLE stars (
    task_id    text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id)
);

CREATE INDEX stars_of_account ON stars (account_id, task_id);

CREATE TABLE boards (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    name       text COLLATE "C" NOT NULL,
    UNIQUE (account_id, name)
);

CREATE TABLE board_tasks (
    board_id text COLLATE "C" NOT NULL REFERENCES boards (id) ON DELETE CASCADE,
    task_id  text COLLATE "C" NOT NULL,
    PRIMARY KEY (board_id, task_id)
);

CREATE INDEX boards_of_task ON board_tasks (task_id);

-- Tasks that people have deleted: hidden, then erased, and forgotten here once their files are gone.
CREATE TABLE deletions (
    task_id    text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    deleted_at bigint NOT NULL,
    erased     boolean NOT NULL DEFAULT false
);

CREATE INDEX deletions_due ON deletions (erased, deleted_at);
