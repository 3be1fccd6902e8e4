-- A board may be private to a person.
CREATE TABLE boards_of_people (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    person_id  TEXT REFERENCES people (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO boards_of_people (id, account_id, name) SELECT id, account_id, name FROM boards;
CREATE TABLE kept_board_tasks AS SELECT board_id, task_id FROM board_tasks;
-- First what refers to boards, which would be deleted with them.
DROP TABLE board_tasks;
DROP TABLE boards;
ALTER TABLE boards_of_people RENAME TO boards;
CREATE TABLE board_tasks (
    board_id TEXT NOT NULL REFERENCES boards (id) ON DELETE CASCADE,
    task_id  TEXT NOT NULL,
    PRIMARY KEY (board_id, task_id)
) STRICT, WITHOUT ROWID;
INSERT INTO board_tasks (board_id, task_id) SELECT board_id, task_id FROM kept_board_tasks;
DROP TABLE kept_board_tasks;
CREATE INDEX boards_of_task ON board_tasks (task_id);
CREATE UNIQUE INDEX boards_by_name ON boards (account_id, coalesce(person_id, ''), name);
CREATE INDEX boards_of_person ON boards (person_id) WHERE person_id IS NOT NULL;
