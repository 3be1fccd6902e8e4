-- Links that show a task or a board without a sign-in.
CREATE TABLE shared_links (
    id           text COLLATE "C" PRIMARY KEY,
    account_id   text COLLATE "C" NOT NULL REFERENCES accounts (id),
    person_id    text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    task_id      text COLLATE "C",
    board_id     text COLLATE "C" REFERENCES boards (id) ON DELETE CASCADE,
    with_prompts boolean NOT NULL,
    expires_at   bigint,
    views        bigint NOT NULL DEFAULT 0,
    CHECK ((task_id IS NULL) <> (board_id IS NULL))
);
CREATE INDEX shared_links_of_account ON shared_links (account_id, id);
CREATE INDEX shared_links_of_person ON shared_links (person_id);
CREATE INDEX shared_links_of_task ON shared_links (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX shared_links_of_board ON shared_links (board_id) WHERE board_id IS NOT NULL;
CREATE INDEX shared_links_due ON shared_links (expires_at) WHERE expires_at IS NOT NULL;
