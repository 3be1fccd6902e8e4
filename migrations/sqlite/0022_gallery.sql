-- The search of the prompts of the studio's tasks. `prompts` numbers the tasks for the index, whose terms begin with a tag
-- of their account. The index holds no text.
CREATE TABLE prompts (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL UNIQUE
) STRICT;

CREATE VIRTUAL TABLE prompt_words USING fts5 (
    words, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii'
);

-- Tasks whose prompts are yet to be indexed.
CREATE TABLE unindexed (
    task_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

INSERT INTO unindexed SELECT id FROM tasks WHERE surface = 'web' AND removed_at IS NULL;

CREATE TABLE stars (
    task_id    TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id)
) STRICT, WITHOUT ROWID;

CREATE INDEX stars_of_account ON stars (account_id, task_id);

CREATE TABLE boards (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    UNIQUE (account_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE board_tasks (
    board_id TEXT NOT NULL REFERENCES boards (id) ON DELETE CASCADE,
    task_id  TEXT NOT NULL,
    PRIMARY KEY (board_id, task_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX boards_of_task ON board_tasks (task_id);

-- Tasks that people have deleted: hidden, then erased, and forgotten here once their files are gone.
CREATE TABLE deletions (
    task_id    TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    deleted_at INTEGER NOT NULL,
    erased     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX deletions_due ON deletions (erased, deleted_at);
