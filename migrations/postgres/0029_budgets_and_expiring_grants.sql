-- Processes of the release before know neither budgets nor credits that expire, and cannot work with this schema.
LOCK TABLE accounts, api_keys, ledger, queue IN ACCESS EXCLUSIVE MODE;

-- A key may have a budget: credits to spend in a day, a week or a month. Keys that were rotated share one: `first_id` is the
-- key at the beginning of their line. Earlier rotations are not known.
ALTER TABLE api_keys ADD COLUMN first_id text COLLATE "C";
ALTER TABLE api_keys ADD COLUMN budget bigint CHECK (budget > 0);
ALTER TABLE api_keys ADD COLUMN budget_period text
    CHECK ((budget_period IS NULL) = (budget IS NULL) AND budget_period IN ('day', 'week', 'month'));
UPDATE api_keys SET first_id = id;
ALTER TABLE api_keys ALTER COLUMN first_id SET NOT NULL;
CREATE INDEX keys_of_line ON api_keys (first_id);

-- An entry of a task names its key, and one of the kind `expiry` the grant that lapsed. All rows so far satisfy the new
-- checks, so none is read.
DO $$
DECLARE
    narrow text;
BEGIN
    FOR narrow IN SELECT conname FROM pg_constraint
        WHERE conrelid = 'ledger'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%kind%'
    LOOP
        EXECUTE format('ALTER TABLE ledger DROP CONSTRAINT %I', narrow);
    END LOOP;
END $$;
ALTER TABLE ledger ADD COLUMN key_id text COLLATE "C", ADD COLUMN grant_id bigint;
ALTER TABLE ledger
    ADD CONSTRAINT ledger_kind CHECK (kind IN ('grant', 'charge', 'refund', 'expiry')) NOT VALID,
    ADD CONSTRAINT ledger_amount_sign
        CHECK ((kind = 'grant' OR (amount < 0) = (kind IN ('charge', 'expiry'))) AND amount <> 0) NOT VALID,
    ADD CONSTRAINT ledger_task CHECK ((task_id IS NULL) = (kind IN ('grant', 'expiry'))) NOT VALID,
    ADD CONSTRAINT ledger_key CHECK (key_id IS NULL OR task_id IS NOT NULL) NOT VALID,
    ADD CONSTRAINT ledger_grant CHECK ((grant_id IS NOT NULL) = (kind = 'expiry')) NOT VALID;
-- The key of earlier tasks is known while they are in the queue.
UPDATE ledger SET key_id = q.key_id FROM queue q WHERE ledger.task_id = q.task_id AND q.key_id IS NOT NULL;
-- The entries of a key in a period are a range of this index, which holds all that is read.
CREATE INDEX ledger_of_key ON ledger (key_id, task_id) INCLUDE (amount) WHERE key_id IS NOT NULL;
-- A grant lapses once, whatever the code above does.
CREATE UNIQUE INDEX ledger_expiry_once ON ledger (grant_id) WHERE grant_id IS NOT NULL;

-- The credits that the keys of a line have spent on tasks from the id `from_id` on and below `end_id`. Being volatile, it sees
-- what was committed before it begins. `account` makes it begin after the lock of that account.
CREATE FUNCTION tintype_spent(account text, line text, from_id text, end_id text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (SELECT coalesce(-sum(l.amount), 0) FROM api_keys k JOIN ledger l ON l.key_id = k.id
        WHERE k.first_id = line COLLATE "C" AND l.key_id IS NOT NULL
            AND l.task_id >= from_id COLLATE "C" AND l.task_id < end_id COLLATE "C");
END $$;

-- Credits that expire, by the entry that brought them: a grant, or a refund of credits whose grant had lapsed. They are
-- part of the balance. `remaining` is what can still be spent of them; `lapsed` is what was left when they expired. Only who
-- has locked the account changes a row.
CREATE TABLE expiring_grants (
    entry_id   bigint PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    amount     bigint NOT NULL CHECK (amount > 0),
    expires_at bigint NOT NULL,
    remaining  bigint NOT NULL CHECK (remaining BETWEEN 0 AND amount),
    lapsed     bigint CHECK (lapsed IS NULL OR (lapsed BETWEEN 0 AND amount AND remaining = 0))
);

CREATE INDEX live_grants ON expiring_grants (account_id, expires_at, entry_id) WHERE lapsed IS NULL;
CREATE INDEX grants_due ON expiring_grants (expires_at) WHERE lapsed IS NULL;

-- Credits of expiring grants that a task took, for its refund: pairs of grant and credits in JSON. Only needed until the task
-- has ended, so it is in the narrow table that the task then leaves.
ALTER TABLE queue ADD COLUMN taken text;

-- The credits of grants that have expired at `now` and not lapsed yet, and those of grants that expire later.
CREATE FUNCTION tintype_expiring(account text, now bigint, OUT expired bigint, OUT live bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    SELECT coalesce(sum(remaining) FILTER (WHERE expires_at <= now), 0),
        coalesce(sum(remaining) FILTER (WHERE expires_at > now), 0) INTO expired, live
    FROM expiring_grants WHERE account_id = account COLLATE "C" AND lapsed IS NULL;
END $$;

-- Takes credits of expiring grants for a task that costs `cost`, the soonest first. Returns what it took, if anything.
CREATE FUNCTION tintype_spend(account text, cost bigint, now bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    live record;
    part bigint;
    missing bigint := cost;
    parts text[] := '{}';
BEGIN
    FOR live IN SELECT entry_id, remaining FROM expiring_grants
        WHERE account_id = account COLLATE "C" AND lapsed IS NULL AND expires_at > now AND remaining > 0
        ORDER BY expires_at, entry_id
    LOOP
        part := least(live.remaining, missing);
        UPDATE expiring_grants SET remaining = remaining - part WHERE entry_id = live.entry_id;
        parts := parts || format('[%s,%s]', live.entry_id, part);
        missing := missing - part;
        EXIT WHEN missing = 0;
    END LOOP;
    RETURN CASE WHEN cardinality(parts) > 0 THEN format('[%s]', array_to_string(parts, ',')) END;
END $$;

-- Takes `beyond` credits of the grants that expire last. Returns what it took.
CREATE FUNCTION tintype_draw(account text, beyond bigint, now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    live record;
    part bigint;
    missing bigint := greatest(beyond, 0);
BEGIN
    FOR live IN SELECT entry_id, remaining FROM expiring_grants
        WHERE account_id = account COLLATE "C" AND lapsed IS NULL AND expires_at > now AND remaining > 0
        ORDER BY expires_at DESC, entry_id DESC
    LOOP
        EXIT WHEN missing = 0;
        part := least(live.remaining, missing);
        UPDATE expiring_grants SET remaining = remaining - part WHERE entry_id = live.entry_id;
        missing := missing - part;
    END LOOP;
    RETURN greatest(beyond, 0) - missing;
END $$;

-- Gives credits back to the grants from which `taken` says they came. Those of grants that have expired can be spent until
-- `extended`, as a grant of the entry of the refund. Returns their number.
CREATE FUNCTION tintype_give_back(account text, refund bigint, taken text, now bigint, extended bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    part json;
    late bigint := 0;
BEGIN
    FOR part IN SELECT json_array_elements(taken::json) LOOP
        UPDATE expiring_grants SET remaining = remaining + (part ->> 1)::bigint
        WHERE entry_id = (part ->> 0)::bigint AND lapsed IS NULL AND expires_at > now;
        IF NOT FOUND THEN
            late := late + (part ->> 1)::bigint;
        END IF;
    END LOOP;
    IF late > 0 THEN
        INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
        VALUES (refund, account, late, extended, late);
    END IF;
    RETURN late;
END $$;

-- The owner is told when a balance falls below this.
ALTER TABLE accounts ADD COLUMN low_balance bigint CHECK (low_balance > 0);

-- Tells the endpoints of an account of low credits, if it has just lost so many and that took the balance below `low`.
CREATE FUNCTION tintype_tell_if_low(account text, low bigint, lost bigint, balance bigint, now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF low > balance AND low <= balance + lost THEN
        RETURN tintype_tell(account, 'credits.low', NULL,
            json_build_object('credits', balance, 'threshold', low)::text, now);
    END IF;
    RETURN 0;
END $$;
