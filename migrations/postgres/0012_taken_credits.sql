-- The operator may take credits away, which is a negative grant. All rows so far satisfy the wider check, so none is read.
DO $$
DECLARE
    narrow text;
BEGIN
    SELECT conname INTO STRICT narrow FROM pg_constraint
    WHERE conrelid = 'ledger'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%amount < 0%';
    EXECUTE format('ALTER TABLE ledger DROP CONSTRAINT %I', narrow);
END $$;
ALTER TABLE ledger ADD CONSTRAINT ledger_amount_sign
    CHECK ((kind = 'grant' OR (amount < 0) = (kind = 'charge')) AND amount <> 0) NOT VALID;
