-- One table of tasks instead of a partition for each month: the rows of removed tasks stay, as they do on SQLite.
LOCK TABLE tasks, ledger IN ACCESS EXCLUSIVE MODE;

ALTER TABLE tasks RENAME TO tasks_by_month;
CREATE TABLE tasks (LIKE tasks_by_month INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
INSERT INTO tasks SELECT * FROM tasks_by_month;

-- The tasks of dropped months get a row again, as removed tasks: of each the ledger tells account, cost and end, and
-- nothing else is known.
INSERT INTO tasks (id, account_id, surface, image_to_image, status, updated_at, images, error, n, aspect_ratio,
    reference_images, prompt, removed_at)
SELECT charge.task_id, charge.account_id, 'api', false,
    CASE WHEN refund.id IS NULL THEN 'completed' ELSE 'failed' END,
    coalesce(refund.created_at, charge.created_at),
    CASE WHEN refund.id IS NULL THEN '["unknown"]' END,
    CASE WHEN refund.id IS NOT NULL THEN 'The error is no longer known.' END,
    least(greatest(-charge.amount / 2, 1), 4), '1:1', '[]', '', coalesce(refund.created_at, charge.created_at)
FROM ledger charge
LEFT JOIN ledger refund ON refund.task_id = charge.task_id AND refund.kind = 'refund'
WHERE charge.kind = 'charge' AND charge.task_id < (SELECT first_id FROM history)
    AND NOT EXISTS (SELECT 1 FROM tasks_by_month t WHERE t.id = charge.task_id);

DROP TABLE tasks_by_month;
DROP TABLE history;
ALTER TABLE tasks ADD PRIMARY KEY (id);
CREATE INDEX tasks_of_account ON tasks (account_id, surface, id, removed_at) WHERE removed_at IS NULL;
