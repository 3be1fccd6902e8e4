-- The grants of one account, lapsed ones included, and the calls of its keys are found without those of the others.
CREATE INDEX grants_of_account ON expiring_grants (account_id);
CREATE INDEX calls_of_key ON calls (key_id);
