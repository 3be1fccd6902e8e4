-- Calls of OpenAI's dialect, by which a repeated call finds the task of the attempt before. The digests are SHA-256 of the
-- choices of the call and of its idempotency key.
CREATE TABLE calls (
    task_id      text COLLATE "C" PRIMARY KEY,
    key_id       text COLLATE "C" NOT NULL,
    digest       bytea NOT NULL,
    idempotency  bytea,
    -- The latest attempt that took the task, counted from 0.
    attempt      bigint NOT NULL,
    -- The call that waits for the task; null once its caller has hung up.
    holder       bigint,
    delivered_at bigint
);

CREATE UNIQUE INDEX calls_by_idempotency ON calls (key_id, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX undelivered_calls ON calls (key_id, digest) WHERE idempotency IS NULL AND delivered_at IS NULL;

-- The task that a call would find: of its idempotency key or, without one, of an attempt since the task `first` that has not
-- delivered its answer. Being volatile, it sees what was committed before it begins. `account` makes it begin after the
-- lock of that account.
CREATE FUNCTION tintype_call(account text, of_key text, body bytea, idem bytea, retry bigint, first text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF idem IS NOT NULL THEN
        RETURN (SELECT task_id FROM calls WHERE key_id = of_key COLLATE "C" AND idempotency = idem);
    END IF;
    RETURN (SELECT task_id FROM calls
        WHERE key_id = of_key COLLATE "C" AND digest = body AND idempotency IS NULL AND delivered_at IS NULL
            AND attempt < retry AND task_id >= first COLLATE "C" LIMIT 1);
END $$;
