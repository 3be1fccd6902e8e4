-- Failed tasks keep a cause. Earlier releases told refusals by their sentence.
ALTER TABLE tasks ADD COLUMN cause text;
UPDATE tasks SET cause = 'policy'
WHERE status = 'failed' AND error = 'The request was refused by the content policy. Its credits were refunded.';
