-- The index of prompts is made anew: its numbers follow the times of the tasks, also after the clock was set back, and a
-- deletion takes the words out of the index instead of marking the task. The beginnings that most searches ask for are a tag
-- of twelve characters and three letters or more.
DROP TABLE prompt_words;
DROP TABLE prompts;

CREATE TABLE prompts (
    number  INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL UNIQUE
) STRICT;

CREATE VIRTUAL TABLE prompt_words USING fts5 (words, content = '', detail = none, tokenize = 'ascii', prefix = '15');
INSERT INTO prompt_words (prompt_words, rank) VALUES ('secure-delete', 1);

INSERT OR IGNORE INTO unindexed SELECT id FROM tasks WHERE surface = 'web' AND prompt <> '';

-- The time of the last claim, which tells waiting from rendering. It is not known of earlier tasks.
ALTER TABLE queue ADD COLUMN claimed_at INTEGER;
ALTER TABLE tasks ADD COLUMN claimed_at INTEGER;
