-- The latest failures of an account, by its refunds, which no other entries hide.
CREATE INDEX refunds_of_account ON ledger (account_id, created_at) WHERE kind = 'refund';

-- The failed tasks whose prompts are kept, with the bytes of prompt and references.
CREATE TABLE failed_prompts (
    task_id    text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    bytes      bigint NOT NULL
);

CREATE INDEX failed_prompts_of_account ON failed_prompts (account_id, task_id, bytes);

INSERT INTO failed_prompts (task_id, account_id, bytes)
SELECT id, account_id, octet_length(prompt) + octet_length(reference_images) FROM tasks
WHERE status = 'failed' AND prompt <> '';
