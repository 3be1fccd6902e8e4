-- Processes of the release before use functions of other names and arguments, so their submits and refunds fail instead of
-- writing what this schema does not expect.
ALTER FUNCTION tintype_balance(text) RENAME TO tintype_credits;

-- Gives credits back to the grants from which `taken` says they came. Those of grants that have expired can be spent until
-- `extended`, as a grant of the entry of the refund. Those that no grant but a refund brought were extended before: they become
-- a grant of the entry of the charge, which has expired. So no chain of failed tasks keeps credits for ever. Returns the
-- number of credits that were extended.
DROP FUNCTION tintype_give_back(text, bigint, text, bigint, bigint);
CREATE FUNCTION tintype_give_back(account text, refund bigint, task text, taken text, now bigint, extended bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    part json;
    late bigint := 0;
    late_again bigint := 0;
BEGIN
    FOR part IN SELECT json_array_elements(taken::json) LOOP
        UPDATE expiring_grants SET remaining = remaining + (part ->> 1)::bigint
        WHERE entry_id = (part ->> 0)::bigint AND lapsed IS NULL AND expires_at > now;
        IF FOUND THEN
            CONTINUE;
        ELSIF EXISTS (SELECT 1 FROM ledger
            WHERE account_id = account COLLATE "C" AND id = (part ->> 0)::bigint AND kind <> 'grant')
        THEN
            late_again := late_again + (part ->> 1)::bigint;
        ELSE
            late := late + (part ->> 1)::bigint;
        END IF;
    END LOOP;
    IF late > 0 THEN
        INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
        VALUES (refund, account, late, extended, late);
    END IF;
    IF late_again > 0 THEN
        INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
        SELECT id, account, late_again, now, late_again FROM ledger
        WHERE task_id = task COLLATE "C" AND kind = 'charge';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'task % was never charged', task;
        END IF;
    END IF;
    RETURN late;
END $$;
